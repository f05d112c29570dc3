"""The contract's identity: equal meaning, equal hash; any other meaning, another hash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, contract_at
from blurfleet.contract import contract_diff, contract_hash


def test_the_default_contract_keeps_its_hash_for_ever() -> None:
    # Clients have this text in their code: a change is a new CANONICAL_VERSION and a new alias, no refactoring.
    assert contract_hash(DEFAULT_CONTRACT) == (
        "sha256:43bfac4b5c1df8f155a3a07b98283330391ee9ff231075c4c953036f3b2f0a82"
    )


@pytest.mark.parametrize("text", ["0.50", "0.5", "5E-1", "00.5", "0.500000000000000000000"])
def test_spellings_of_one_number_have_one_hash(text: str) -> None:
    spec = ContractSpec(mean=(text, "0.456", "0.406"))
    assert contract_hash(spec) == contract_hash(ContractSpec(mean=("0.5", "0.456", "0.406")))
    assert contract_diff(spec, ContractSpec(mean=("0.5", "0.456", "0.406"))) == ()


@pytest.mark.parametrize(
    ("change", "field", "left", "right"),
    [
        ({"color_order": "BGR"}, "colorOrder", "RGB", "BGR"),
        ({"resize": "area"}, "resize", "linear-antialias", "area"),
        ({"scale": "1"}, "scale", "255", "1"),
        ({"std": ("0.485", "0.224", "0.225")}, "std", ["0.229", "0.224", "0.225"], ["0.485", "0.224", "0.225"]),
        ({"background": (0, 0, 0)}, "background", [255, 255, 255], [0, 0, 0]),
        ({"orientation": "ignore"}, "orientation", "apply", "ignore"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_another_meaning_is_another_hash_and_the_diff_names_it(
    change: dict[str, object], field: str, left: object, right: object
) -> None:
    changed = ContractSpec.model_validate(DEFAULT_CONTRACT.model_dump() | change)
    assert contract_hash(changed) != contract_hash(DEFAULT_CONTRACT)
    (difference,) = contract_diff(DEFAULT_CONTRACT, changed)
    assert (difference.field, difference.left, difference.right) == (field, left, right)


def test_the_size_is_part_of_the_hash() -> None:
    fields = [d.field for d in contract_diff(contract_at(160), contract_at(320))]
    assert fields == [f"{axis}.{bound}" for axis in ("height", "width") for bound in ("max", "min", "opt")]


@given(st.decimals(min_value="0.001", max_value="1000", places=6))
def test_the_hash_depends_on_the_number_not_on_its_text(number: object) -> None:
    left, right = ContractSpec(scale=str(number)), ContractSpec(scale=f"{number}000")
    assert contract_hash(left) == contract_hash(right)


@pytest.mark.parametrize(
    "broken",
    [
        {"scale": "nan"},
        {"scale": "0"},
        {"std": ["inf", "1", "1"]},
        {"mean": ["x", "0", "0"]},
        {"background": [0, 0, 256]},
    ],
    ids=str,
)
def test_a_contract_without_sense_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ContractSpec.model_validate(broken)
