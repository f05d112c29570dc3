"""Source weights are used only if their bytes are the pinned ones."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from blurfleet.errors import ArtifactRefused
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet_forge.fetch import fetch_source, read_member, verify
from blurfleet_forge.recipe import Recipe


def test_the_pinned_bytes_come_back_unchanged(recipe: Recipe) -> None:
    data = fetch_source(recipe.source)
    assert len(data) == 4_574_861
    assert digest_bytes(data) == "sha256:309c8469258dda742793dce0ebea8e6dd393174f89934733ecc8b14c76f4ddd8"


def test_a_cached_file_with_one_flipped_byte_is_refused(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(fetch_source(recipe.source))
    data[2_000_000] ^= 1
    monkeypatch.setenv("BLURFLEET_CACHE_DIR", str(tmp_path))
    kept = tmp_path / "sources" / "309c8469258d.onnx"
    kept.parent.mkdir()
    kept.write_bytes(data)
    with pytest.raises(ArtifactRefused) as refused:
        fetch_source(recipe.source)
    assert refused.value.reason is Reason.DIGEST_MISMATCH
    assert refused.value.where == str(kept)


def test_the_refusal_states_both_digests() -> None:
    with pytest.raises(ArtifactRefused, match=r"the bytes are sha256:2c26b46b.* the recipe pins sha256:fcde2b2e"):
        verify(b"foo", digest_bytes(b"bar"), "here")


def test_a_wheel_without_the_member_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(ArtifactRefused) as refused:
        read_member(wheel, "rembg/u2netp.onnx")
    assert refused.value.reason is Reason.MISSING_FILE


def test_a_wheel_cut_short_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(ArtifactRefused) as refused:
        read_member(wheel, "rembg/u2netp.onnx")
    assert refused.value.reason is Reason.MISSING_FILE
