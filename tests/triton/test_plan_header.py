"""Which TensorRT wrote a plan, and what else people hand in as one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from blurfleet.errors import ArtifactRefused
from blurfleet.plan import parse_plan_header, read_plan_header
from blurfleet.reasons import Reason

CASES = Path(__file__).resolve().parents[1] / "cases" / "plan"


def full(version: tuple[int, int, int, int]) -> bytes:
    """A full-TensorRT header of 64 bytes."""
    return b"ftrt" + bytes(20) + bytes(version) + bytes(36)


def rtx(*, size: int = 64, version: tuple[int, int, int, int] = (1, 7, 1, 116)) -> bytes:
    """A TensorRT-RTX header of 64 bytes that states `size`."""
    return (
        b"vtrt" + bytes(4) + struct.pack("<II", 2, 0) + struct.pack("<Q", size) + bytes(version) + b"vtrt" + bytes(32)
    )


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("v8.6.1.6.plan", "8.6.1.6"),
        ("v10.3.0.30.plan", "10.3.0.30"),
        ("v10.13.3.9.plan", "10.13.3.9"),
        ("v11.1.0.106.plan", "11.1.0.106"),
    ],
)
def test_the_version_of_a_full_plan_is_read_from_its_header(name: str, version: str) -> None:
    header = read_plan_header(CASES / name)
    assert (header.tensorrt, header.flavour) == (version, "tensorrt")


def test_an_rtx_plan_is_told_apart_and_its_version_read() -> None:
    header = parse_plan_header(rtx(), 64)
    assert (header.tensorrt, header.flavour, header.file_bytes) == ("1.7.1.116", "tensorrt_rtx", 64)


PLAN = full((10, 3, 0, 30))
REFUSED = [
    pytest.param(b"", Reason.TRUNCATED_PLAN, "empty", id="a file of zero bytes is truncated"),
    pytest.param(PLAN[:20], Reason.TRUNCATED_PLAN, "20 bytes", id="a header of 20 bytes is truncated"),
    pytest.param(PLAN[:27], Reason.TRUNCATED_PLAN, "27 bytes", id="one byte short is truncated"),
    pytest.param(
        rtx(size=65), Reason.TRUNCATED_PLAN, "states 65", id="an RTX plan shorter than it states is truncated"
    ),
    pytest.param(rtx(size=63), Reason.NOT_A_PLAN, "damaged", id="an RTX plan longer than it states is damaged"),
    pytest.param(PLAN[:3], Reason.NOT_A_PLAN, "magic", id="three bytes are no magic word"),
    pytest.param(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
        Reason.NOT_A_PLAN,
        "Git LFS",
        id="a Git LFS pointer",
    ),
    pytest.param(b"\n <!DOCTYPE html><html>", Reason.NOT_A_PLAN, "HTML", id="an HTML login page"),
    pytest.param(b'{"description": "x"}' + PLAN, Reason.NOT_A_PLAN, "JSON text", id="a JSON text"),
    pytest.param(
        struct.pack("<I", 19) + b'{"description":"x"}' + PLAN,
        Reason.NOT_A_PLAN,
        "length and JSON",
        id="a plan behind another tool's length and JSON",
    ),
    pytest.param(b"\r\n" + PLAN, Reason.NOT_A_PLAN, "displaced", id="line ends were put before the plan"),
    pytest.param(b"PK\x03\x04" + bytes(60), Reason.NOT_A_PLAN, "zip", id="a zip archive"),
    pytest.param(b"\x08\x08\x12\x07pytorch" + bytes(60), Reason.NOT_A_PLAN, "magic word", id="an ONNX graph"),
    pytest.param(b"trtf" + PLAN[4:], Reason.NOT_A_PLAN, "wrong order", id="bytes swapped"),
    pytest.param(b"ftrt" + bytes(60), Reason.NOT_A_PLAN, "before 8.6", id="a plan from before 8.6 has no version"),
    pytest.param(b"ftrt\x01" + PLAN[5:], Reason.NOT_A_PLAN, "before 8.6", id="a second word other than zero"),
]


@pytest.mark.parametrize(("data", "reason", "says"), REFUSED)
def test_what_is_no_whole_plan_is_refused_by_the_name_of_its_cause(data: bytes, reason: Reason, says: str) -> None:
    with pytest.raises(ArtifactRefused) as caught:
        parse_plan_header(data[:64], len(data), where="x.plan")
    assert caught.value.reason is reason
    assert says in caught.value.message


def test_an_absent_plan_and_a_folder_are_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "none.plan", tmp_path):
        with pytest.raises(ArtifactRefused) as caught:
            read_plan_header(path)
        assert caught.value.reason is Reason.UNREADABLE_FILE
