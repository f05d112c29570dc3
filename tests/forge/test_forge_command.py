"""`blurfleet forge` as scripts see it: one JSON document, exit codes 0, 1 and 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from blurfleet.artifacts import file_path
from blurfleet.errors import InvalidInput
from blurfleet.identity import digest_file
from blurfleet.reasons import Reason
from blurfleet_cli.commands.forge import forge

RECIPE = str(Path(__file__).resolve().parents[2] / "model_repo" / "bokeh-u2netp" / "recipe.yaml")


def answer(*args: str) -> dict[str, Any]:
    done = CliRunner().invoke(forge, [*args, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def test_build_of_one_set_names_its_files_and_reuses_what_is_there(built: Any) -> None:
    body = answer("build", RECIPE, "--out", str(built.out), "--only", "bokeh-mixed")
    assert body["ok"] is True
    assert body["facts"]["sets"] == {"bokeh-mixed": str(built.out / "sets" / "bokeh-mixed.yaml")}
    assert (body["facts"]["built"], body["facts"]["reused"]) == (0, 4)
    assert [v["precision"] for v in body["facts"]["variants"]["bokeh-mixed"]] == ["FP32", "Mixed", "FP32", "Mixed"]


def test_a_build_that_is_pushed_names_every_blob_where_it_lies_now(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (tmp_path / "shared").as_uri()
    monkeypatch.setenv("BLURFLEET_ARTIFACTS", place)
    args = ("build", RECIPE, "--out", str(built.out), "--only", "bokeh-mixed")
    first, again = answer(*args), answer(*args)
    text = (tmp_path / "shared" / "sets" / "bokeh-mixed.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    blobs = [spec["golden"], *(v[part] for v in spec["variants"] for part in ("artifact", "buildRecord"))]
    for blob in blobs:
        assert blob["uri"].startswith(f"{place}/blobs/sha256/")
        assert digest_file(file_path(blob["uri"])) == blob["digest"]
    assert spec["interface"]["inputs"][0]["shape"][-2:] == [160, 160]
    assert [t["dtype"] for side in ("inputs", "outputs") for t in spec["interface"][side]] == ["float32", "float32"]
    records = [json.loads(file_path(v["buildRecord"]["uri"]).read_bytes()) for v in spec["variants"]]
    for file in (f for record in records for f in record["serving"]["supportFiles"]):
        assert digest_file(file_path(file["uri"])) == file["digest"]
        assert file["uri"].startswith(place)
    assert first["facts"]["pushed"]["documents"] == [f"{place}/contract.yaml", f"{place}/sets/bokeh-mixed.yaml"]
    sent = first["facts"]["pushed"]["sent"]
    assert sent >= len({b["digest"] for b in blobs})
    assert (again["facts"]["pushed"]["sent"], again["facts"]["pushed"]["found"]) == (0, sent)
    monkeypatch.delenv("BLURFLEET_ARTIFACTS")
    assert answer(*args)["facts"]["pushed"] == {"documents": [], "sent": 0, "found": 0}


def test_a_set_that_the_recipe_lacks_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no set bokeh-int4") as refused:
        CliRunner().invoke(
            forge, ["build", RECIPE, "--out", str(tmp_path), "--only", "bokeh-int4"], catch_exceptions=False
        )
    assert refused.value.reason is Reason.NOT_FOUND
    assert list(tmp_path.iterdir()) == []


def test_show_states_the_share_of_work_and_the_errors_reached(built: Any) -> None:
    record = built.variant("bokeh-mixed", "jetson-orin-mixed").build_record
    path = record.uri.removeprefix("file://")
    facts = answer("show", path)["facts"]
    assert facts["precision"] == "Mixed"
    assert facts["errors"]["golden"]["maxAbs"] <= 0.0035
    told = CliRunner().invoke(forge, ["show", path], catch_exceptions=False)
    assert "emulated" in told.stdout


def test_show_of_a_file_that_is_no_record_says_so(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("{}")
    with pytest.raises(InvalidInput) as refused:
        CliRunner().invoke(forge, ["show", str(path)], catch_exceptions=False)
    assert refused.value.reason is Reason.RECORD_INVALID


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["build", "nowhere.yaml"], id="a recipe that does not exist"),
        pytest.param(["search", RECIPE], id="a search without a class"),
        pytest.param(["build", RECIPE, "--size", "7"], id="a size below what a network can take"),
    ],
)
def test_wrong_usage_exits_2(args: list[str]) -> None:
    assert CliRunner().invoke(forge, args).exit_code == 2
