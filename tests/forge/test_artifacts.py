"""Artifacts are what their digest says, or they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from blurfleet.errors import StoreError
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet_forge.artifacts import Artifacts


def test_stored_bytes_lie_under_their_digest(tmp_path: Path) -> None:
    blob = Artifacts(tmp_path).put(b"engine")
    assert blob.digest == digest_bytes(b"engine")
    assert blob.bytes == 6
    assert Path(blob.uri.removeprefix("file://")).read_bytes() == b"engine"


def test_damaged_bytes_are_not_found_and_are_written_again(tmp_path: Path) -> None:
    store = Artifacts(tmp_path)
    blob = store.put(b"engine")
    store.path(blob.digest).write_bytes(b"engime")
    assert store.get(blob.digest) is None
    store.put(b"engine")
    assert store.path(blob.digest).read_bytes() == b"engine"


def test_the_index_forgets_work_whose_artifact_is_damaged(tmp_path: Path) -> None:
    store = Artifacts(tmp_path)
    blob = store.put(b"engine")
    store.remember(digest_bytes(b"inputs"), {"answer": 42}, (blob.digest,))
    assert store.recall(digest_bytes(b"inputs")) == {"answer": 42}
    store.path(blob.digest).write_bytes(b"engime")
    assert store.recall(digest_bytes(b"inputs")) is None


def test_an_index_entry_cut_short_is_work_to_do_again(tmp_path: Path) -> None:
    store = Artifacts(tmp_path)
    key = digest_bytes(b"inputs")
    store.remember(key, {"answer": 42}, ())
    entry = next((tmp_path / "index").iterdir())
    entry.write_bytes(entry.read_bytes()[:20])
    assert store.recall(key) is None


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where a folder should be")
    with pytest.raises(StoreError) as refused:
        Artifacts(tmp_path).put(b"engine")
    assert refused.value.reason is Reason.STORE_UNWRITABLE


def test_no_half_written_file_is_left_behind(tmp_path: Path) -> None:
    store = Artifacts(tmp_path)
    store.put(b"engine")
    assert [p.name for p in (tmp_path / "blobs" / "sha256").iterdir()] == [digest_bytes(b"engine")[7:]]
