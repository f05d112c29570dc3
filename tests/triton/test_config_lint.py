"""What the lint says about configs, alone and against the engine they are to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blurfleet.api.record import BuildRecord, Profile, Serving, Tensor
from blurfleet.check import Severity
from blurfleet.reasons import Reason
from blurfleet_agent.config_lint import lint
from blurfleet_agent.config_text import alias_config, engine_config
from blurfleet_cli.tiny_engines import tiny_record

CASES = Path(__file__).resolve().parents[1] / "cases" / "triton"
HEAD = 'name: "matte"\nplatform: "tensorrt_plan"\n'
INPUT = 'input [{ name: "img" data_type: TYPE_FP32 dims: [3,512,512] }]\n'
OUTPUT = 'output [{ name: "alpha" data_type: TYPE_FP32 dims: [1,512,512] }]\n'
SOUND = HEAD + "max_batch_size: 1\n" + INPUT + OUTPUT


def plan_record(**changes: Any) -> BuildRecord:
    """The record of a TensorRT engine with one FP32 input and output and a free batch axis."""
    record = tiny_record("sha256:" + "a" * 64, size=512)
    serving = Serving(platform="tensorrt_plan", artifact_name="model.plan", instance_kind="KIND_GPU")
    wanted = {
        "inputs": (Tensor(name="img", shape=(-1, 3, 512, 512)),),
        "outputs": (Tensor(name="alpha", shape=(-1, 1, 512, 512)),),
        "serving": serving,
    }
    return record.model_copy(update=wanted | changes)


def errors(text: str, record: BuildRecord | None = None) -> list[tuple[Reason, str]]:
    """Reasons and messages of the findings that refuse."""
    return [(f.reason, f"{f.where}: {f.message}") for f in lint(text, record)[0] if f.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("config_all.pbtxt", {"policy": "all", "served": "every version folder"}),
        (
            "config_default.pbtxt",
            {"policy": "latest", "num_versions": 1, "served": "the 1 highest version folder(s) (the default)"},
        ),
        ("config_latest2.pbtxt", {"policy": "latest", "num_versions": 2, "served": "the 2 highest version folder(s)"}),
        ("config_specific_13.pbtxt", {"policy": "specific", "versions": [1, 3], "served": "versions 1, 3"}),
    ],
)
def test_a_sound_config_is_accepted_and_the_versions_it_serves_are_stated(name: str, versions: dict[str, Any]) -> None:
    findings, facts = lint((CASES / name).read_text(), plan_record())
    assert findings == ()
    assert facts["versions"] == versions


def test_a_mistyped_field_is_refused_by_its_name_and_the_rest_is_still_judged() -> None:
    text = (CASES / "config_typo_field.pbtxt").read_text().replace("dims: [1,512,512]", "dims: [1,0,512]")
    found = errors(text)
    assert [reason for reason, _ in found] == [Reason.CONFIG_UNKNOWN_FIELD, Reason.CONFIG_INVALID]
    assert "line 6: ModelConfig has no field named 'version_polcy'" in found[0][1]


def test_a_wrong_output_type_names_engine_and_config_the_right_way_round() -> None:
    [(reason, message)] = errors((CASES / "config_fp16_io_mismatch.pbtxt").read_text(), plan_record())
    assert reason is Reason.CONFIG_TYPE_MISMATCH
    assert "the engine's output 'alpha' is TYPE_FP32, the config says TYPE_FP16" in message


REFUSED = [
    pytest.param("", Reason.UNPARSEABLE, "empty", id="an empty config"),
    pytest.param("<html>", Reason.UNPARSEABLE, "line 1", id="a web page"),
    pytest.param('name: "a" name: "b"', Reason.UNPARSEABLE, "name", id="a field given twice"),
    pytest.param(
        SOUND.replace('"matte"', '"${MODEL}"'), Reason.CONFIG_PLACEHOLDER, "${MODEL}", id="a placeholder left"
    ),
    pytest.param(
        SOUND.replace("max_batch_size: 1", "max_batch_size: ${BATCH}"),
        Reason.CONFIG_PLACEHOLDER,
        "line 3: the placeholder ${BATCH}",
        id="a placeholder that breaks the syntax is still named",
    ),
    pytest.param(SOUND.replace('name: "matte"', ""), Reason.CONFIG_INVALID, "no name", id="no name"),
    pytest.param(HEAD + OUTPUT, Reason.CONFIG_INVALID, "no input", id="no input"),
    pytest.param(HEAD + INPUT, Reason.CONFIG_INVALID, "no output", id="no output"),
    pytest.param(SOUND + INPUT, Reason.CONFIG_INVALID, "named 2 times", id="an input named twice"),
    pytest.param(SOUND.replace('platform: "tensorrt_plan"', ""), Reason.CONFIG_INVALID, "neither", id="no runtime"),
    pytest.param(
        SOUND.replace("data_type: TYPE_FP32 dims: [3", "dims: [3"), Reason.CONFIG_INVALID, "data_type", id="no type"
    ),
    pytest.param(SOUND.replace("dims: [3,512,512]", ""), Reason.CONFIG_INVALID, "no dims", id="no dims"),
    pytest.param(SOUND.replace("[3,512", "[3,-2"), Reason.CONFIG_INVALID, "axis of -2", id="an axis of -2"),
    pytest.param(SOUND.replace("size: 1", "size: -1"), Reason.CONFIG_INVALID, "negative", id="a negative batch size"),
    pytest.param(
        SOUND + "version_policy { specific { } }",
        Reason.CONFIG_INVALID,
        "names no version",
        id="a specific policy of none",
    ),
    pytest.param(
        SOUND + "version_policy { latest { num_versions: 0 } }",
        Reason.CONFIG_INVALID,
        "0 versions",
        id="the latest none",
    ),
    pytest.param(
        SOUND.replace("size: 1", "size: 0") + "dynamic_batching { }",
        Reason.CONFIG_INVALID,
        "max_batch_size of 1",
        id="dynamic batching without a batch",
    ),
    pytest.param(
        SOUND.replace("tensorrt_plan", "ensemble"), Reason.CONFIG_INVALID, "no step", id="an ensemble without a step"
    ),
]


@pytest.mark.parametrize(("text", "reason", "says"), REFUSED)
def test_a_config_is_refused_by_the_name_of_what_is_wrong(text: str, reason: Reason, says: str) -> None:
    [(found, message)] = errors(text)
    assert found is reason
    assert says in message


def test_an_ensemble_that_drops_a_tensor_or_contains_itself_is_refused() -> None:
    tensors = {"inputs": (Tensor(name="image", shape=(1, 3, 8, 8)),), "outputs": (Tensor(name="matte", shape=(1,)),)}
    text = alias_config("bokeh", "bokeh__a", 7, **tensors)
    assert lint(text)[0] == ()
    assert "no step makes output 'matte'" in errors(text.replace('value: "matte"', 'value: "other"'))[0][1]
    assert "a step of itself" in errors(text.replace("bokeh__a", "bokeh"))[0][1]


def test_a_queue_policy_with_dynamic_batching_is_a_warning_not_a_refusal() -> None:
    text = SOUND + "dynamic_batching { default_queue_policy { max_queue_size: 16 } }"
    [finding] = lint(text)[0]
    assert (finding.severity, finding.reason) == (Severity.WARNING, Reason.CONFIG_HAZARD)
    assert lint(SOUND + "dynamic_batching { preferred_batch_size: [1] }")[0] == ()


MISMATCHED = [
    pytest.param(SOUND.replace('"img"', '"image"'), {}, Reason.RECORD_MISMATCH, 2, id="another input name"),
    pytest.param(SOUND.replace("[3,512,512]", "[3,256,256]"), {}, Reason.CONFIG_SHAPE_MISMATCH, 1, id="another size"),
    pytest.param(
        SOUND.replace("size: 1", "size: 0"), {}, Reason.CONFIG_SHAPE_MISMATCH, 2, id="a batch axis left out of both"
    ),
    pytest.param(
        SOUND.replace("tensorrt_plan", "onnxruntime_onnx"), {}, Reason.RECORD_MISMATCH, 1, id="another runtime"
    ),
    pytest.param(SOUND + 'default_model_filename: "m.onnx"', {}, Reason.RECORD_MISMATCH, 1, id="another file"),
    pytest.param(SOUND + "instance_group [{ kind: KIND_CPU }]", {}, Reason.RECORD_MISMATCH, 1, id="another device"),
    pytest.param(
        SOUND.replace("[3,512,512]", "[3,-1,-1]"), {}, Reason.CONFIG_SHAPE_MISMATCH, 1, id="free axes on a fixed engine"
    ),
]


@pytest.mark.parametrize(("text", "changes", "reason", "count"), MISMATCHED)
def test_a_config_that_contradicts_the_record_is_refused(
    text: str, changes: dict[str, Any], reason: Reason, count: int
) -> None:
    found = errors(text, plan_record(**changes))
    assert [one for one, _ in found] == [reason] * count


def test_a_fixed_config_fits_an_engine_with_free_axes() -> None:
    free = (Tensor(name="img", shape=(-1, 3, -1, -1)),)
    assert errors(SOUND, plan_record(inputs=free)) == []


def test_a_generated_config_passes_its_own_lint_and_says_what_the_record_says() -> None:
    profiles = tuple(
        Profile(tensor="img", min=(1, 3, 512, 512), opt=(n, 3, 512, 512), max=(4, 3, 512, 512)) for n in (1, 4)
    )
    record = plan_record(profiles=profiles)
    text = engine_config(record, "bokeh__aaaaaaaaaaaa")
    findings, facts = lint(text, record)
    assert findings == ()
    assert (facts["name"], facts["runtime"], facts["max_batch_size"]) == ("bokeh__aaaaaaaaaaaa", "tensorrt_plan", 0)
    assert facts["versions"]["versions"] == [1]
    assert facts["inputs"] == [{"name": "img", "type": "TYPE_FP32", "dims": [-1, 3, 512, 512]}]
    assert 'default_model_filename: "model.plan"' in text
    assert text.count("profile:") == 2


def test_a_python_engine_is_given_its_parameters_and_no_file_name() -> None:
    serving = Serving(backend="python", artifact_name="m.onnx", instance_kind="KIND_CPU", parameters={"threads": "1"})
    text = engine_config(plan_record(serving=serving), "m")
    assert "default_model_filename" not in text
    assert 'key: "threads"' in text
    assert 'string_value: "1"' in text
    assert lint(text, plan_record(serving=serving))[0] == ()
