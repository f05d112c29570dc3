"""`blurfleet contract diagnose`: what was done to a tensor that is not the contract's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.check import CheckReport, refused
from blurfleet.contract import contract_hash
from blurfleet.diagnosis import diagnose as cause
from blurfleet.diagnosis.compare import compare_contracts
from blurfleet.diagnosis.report import facts_of, findings_of, report_of
from blurfleet.errors import BlurfleetError
from blurfleet.pixels import decode, to_tensor
from blurfleet.reduced import KERNEL as REDUCED
from blurfleet_cli.commands.contract_files import (
    as_json_option,
    bytes_in,
    contract_option,
    finish,
    size_option,
    spec_in,
    tensor_in,
)

_path = click.Path(path_type=Path)


@click.command()
@click.option("--reference", type=_path, help="The right tensor (.npy); made of --image without it.")
@click.option("--observed", type=_path, help="The tensor in doubt (.npy).")
@click.option("--image", type=_path, help="The picture both were made of: names the resize kernel.")
@click.option("--reference-contract", type=_path, help="The contract served (YAML), to compare without tensors.")
@click.option("--observed-contract", type=_path, help="The client's contract (YAML).")
@contract_option
@size_option
@as_json_option
def diagnose(
    reference: Path | None,
    observed: Path | None,
    image: Path | None,
    reference_contract: Path | None,
    observed_contract: Path | None,
    contract_file: Path | None,
    size: int | None,
    as_json: bool,
) -> None:
    """Say what was done to a tensor that is not what the contract makes of the same picture.

    Exit code 0: nothing, but for rounding. 1: faults, named in `findings`, or a file that is none. 2: wrong usage.

    Example: blurfleet contract diagnose --reference right.npy --observed mine.npy --image photo.jpg --json
    """
    if reference_contract is not None and observed_contract is not None and observed is None:
        finish(_contracts(spec_in(reference_contract, size), observed_contract, size), as_json)
    if observed is None or (reference is None and image is None):
        raise click.UsageError(
            "give --observed with --reference or --image, or two contracts: --reference-contract --observed-contract"
        )
    spec = spec_in(contract_file, size)
    finish(_tensors(spec, reference, observed, image), as_json)


def _contracts(served: ContractSpec, observed_file: Path, size: int | None) -> CheckReport:
    theirs = spec_in(observed_file, size)
    faults, distance = compare_contracts(served, theirs)
    facts = {"contract_hash": contract_hash(served), "observed_hash": contract_hash(theirs)}
    return CheckReport(path=str(observed_file), findings=findings_of(faults), facts=facts | facts_of(faults, distance))


def _tensors(spec: ContractSpec, reference: Path | None, observed: Path, image: Path | None) -> CheckReport:
    seen, data = tensor_in(observed), None if image is None else bytes_in(image)
    right = None if reference is None else tensor_in(reference).astype(np.float32)
    facts: dict[str, Any] = {"contract_hash": contract_hash(spec)}
    try:
        picture, reduced = None, None
        if data is not None:
            picture = decode(data, spec, whole=True).rgb
            reduced = decode(data, spec.model_copy(update={"resize": REDUCED}))
        if right is None:
            assert data is not None
            right = to_tensor(decode(data, spec), spec)
        found = cause.diagnose(right, seen, spec, picture, reduced)
    except BlurfleetError as error:
        return refused(str(observed), error, facts)
    return report_of(str(observed), found, facts)
