"""Whatever the bytes: the decoder gives a whole upright picture or refuses by a reason, soon, in bounded memory."""

import io
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fuzz.pictures import KINDS, PNG, SIZE, Edit, chunk, damaged, jpeg_of, png, seeds

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import ContractRefused
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason

SPEC = ContractSpec()
SEEDS = seeds()
TAKEN = {name for name in SEEDS if name.split()[0] in ("jpeg", "png", "webp")} - {
    "jpeg 2000",
    "png animated",
    "webp animated",
}
REFUSALS = {Reason.EMPTY_IMAGE, Reason.TRUNCATED_IMAGE, Reason.UNSUPPORTED_IMAGE, Reason.IMAGE_TOO_LARGE}
edits = st.lists(
    st.builds(
        Edit,
        kind=st.sampled_from(KINDS),
        at=st.one_of(st.integers(0, 999), st.integers(0, 80)),
        value=st.one_of(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0xFFD8, 0xFFD9, 0xFFDA, 60000, 2**31 - 1, 2**32 - 1]),
            st.integers(0, 2**32 - 1),
        ),
        length=st.integers(1, 70),
    ),
    min_size=1,
    max_size=6,
)


def refusal(data: bytes, spec: ContractSpec = SPEC) -> Reason | None:
    """Return why `data` is refused, None where it is a picture; anything else is a fault."""
    try:
        found = decode(data, spec)
    except ContractRefused as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.reason in REFUSALS
        assert refused.message
        return refused.reason
    assert found.rgb.shape == (*found.decoded_size, 3)
    assert np.isfinite(found.rgb).all()
    return None


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_whole_pictures_of_the_three_formats_are_taken_and_no_others(name: str) -> None:
    if name not in TAKEN:
        assert refusal(SEEDS[name]) is Reason.UNSUPPORTED_IMAGE
        return
    upright = SIZE if "segments" not in name and name not in ("png rgba", "webp alpha") else SIZE[::-1]
    assert decode(SEEDS[name], SPEC).decoded_size == upright


def test_an_interlaced_png_is_the_same_picture() -> None:
    grey = np.random.default_rng(5).integers(0, 256, (*SIZE, 3), dtype=np.uint8)[..., 0]
    np.testing.assert_array_equal(decode(SEEDS["png interlaced"], SPEC).rgb[..., 1], grey)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(SEEDS)), damage=edits, mended=st.booleans())
def test_damaged_pictures_are_taken_or_refused_and_nothing_else(name: str, damage: list[Edit], mended: bool) -> None:
    refusal(damaged(SEEDS[name], damage, mended=mended))


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(TAKEN)), keep=st.integers(0, 999))
@example(name="jpeg", keep=999)
def test_no_part_of_a_picture_is_a_picture(name: str, keep: int) -> None:
    data = SEEDS[name]
    part = data[: keep * len(data) // 1000]
    assert refusal(part) in REFUSALS


@pytest.mark.parametrize("name", [name for name in sorted(TAKEN) if name.startswith("jpeg")])
@pytest.mark.parametrize("keep", [0.5, 0.8, 0.95])
def test_half_a_jpeg_is_no_picture_though_it_ends_as_one(name: str, keep: float) -> None:
    picture = np.random.default_rng(2).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    whole = jpeg_of(picture, name)
    assert refusal(whole) is None
    assert refusal(whole[: int(keep * len(whole))] + b"\xff\xd9") is Reason.TRUNCATED_IMAGE


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"\xff\xd8\xff", PNG, b"RIFF\x20\x00\x00\x00WEBP", b"GIF89a", b"BM", b"II*\x00"]),
)
def test_bytes_are_refused(tail: bytes, head: bytes) -> None:  # fmt: skip
    assert refusal(head + tail) in REFUSALS


def jpeg_with(segment: bytes, name: str = "jpeg") -> bytes:
    return SEEDS[name][:2] + segment + SEEDS[name][2:]


def app1(tiff: bytes) -> bytes:
    body = b"Exif\x00\x00" + tiff
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def ifd(entries: list[tuple[int, int, int, int]], following: int = 0) -> bytes:
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return struct.pack("<H", len(entries)) + rows + struct.pack("<I", following)


TIFF = b"II*\x00\x08\x00\x00\x00"
BIG_ENDIAN = b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("tiff", "turned"),
    [
        pytest.param(TIFF + ifd([(0x0112, 3, 1, 6)], following=8), True, id="its own next directory"),
        pytest.param(TIFF + ifd([(0x8769, 4, 1, 8), (0x0112, 3, 1, 6)]), True, id="a directory within itself"),
        pytest.param(b"II*\x00\xff\xff\xff\xff", False, id="a directory beyond the end"),
        pytest.param(TIFF + b"\xff\xff", False, id="65535 entries that are not there"),
        pytest.param(TIFF + ifd([(0x0112, 3, 2**32 - 1, 9)]), False, id="an orientation of 9"),
        pytest.param(b"II*\x00\x00\x00\x00\x00", False, id="a directory in the header"),
        pytest.param(BIG_ENDIAN, True, id="big-endian"),
    ],
)
def test_orientation_tags_that_loop_or_lie_turn_nothing_and_end(tiff: bytes, turned: bool) -> None:
    found = decode(jpeg_with(app1(tiff)), SPEC)
    assert found.decoded_size == (SIZE[::-1] if turned else SIZE)


@pytest.mark.parametrize("count", [1, 50, 2000])
def test_many_segments_are_passed_over(count: int) -> None:
    comment = b"\xff\xfe\x00\x10" + b"c" * 14
    np.testing.assert_array_equal(decode(jpeg_with(comment * count), SPEC).rgb, decode(SEEDS["jpeg"], SPEC).rgb)


BOMB = 40 << 20


def huge_jpeg(width: int, height: int) -> bytes:
    at = SEEDS["jpeg"].index(b"\xff\xc0") + 5
    return SEEDS["jpeg"][:at] + struct.pack(">HH", height, width) + SEEDS["jpeg"][at + 4 :]


def huge_webp(width: int, height: int) -> bytes:
    data = bytearray(SEEDS["webp lossless"])
    at = data.index(b"VP8L") + 9
    data[at : at + 4] = struct.pack("<I", (width - 1) | (height - 1) << 14)
    return bytes(data)


PEAK = """
import pathlib, resource, sys
from blurfleet.api.contract import ContractSpec
from blurfleet.errors import ContractRefused
from blurfleet.pixels import decode
data = pathlib.Path(sys.argv[1]).read_bytes()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
try:
    decode(data, ContractSpec())
except ContractRefused:
    pass
print(peak() - before)
"""


def profile(inflated: int) -> bytes:
    return chunk(b"iCCP", b"name\x00\x00" + zlib.compress(bytes(inflated), 9))


def text(inflated: int) -> bytes:
    return chunk(b"zTXt", b"name\x00\x00" + zlib.compress(bytes(inflated), 9))


GOOD = b"".join(b"\x00" + bytes(4 * 3) for _ in range(4))
FILL = chunk(b"tEXt", b"k\x00" + b"x" * 50_000)
CLAIMS = {
    "a PNG of 60000x60000 in 50 kB": (png(60000, 60000, bytes(1 << 20), more=FILL), Reason.IMAGE_TOO_LARGE),
    "a JPEG of 65000x65000": (huge_jpeg(65000, 65000), Reason.IMAGE_TOO_LARGE),
    "a JPEG of 16384x16384": (huge_jpeg(16384, 16384), Reason.IMAGE_TOO_LARGE),
    "a WebP of 16384x16384": (huge_webp(16384, 16384), Reason.IMAGE_TOO_LARGE),
    "a PNG of 7000x7000 with one row": (png(7000, 7000, bytes(21001)), Reason.TRUNCATED_IMAGE),
    "a JPEG of 7000x7000 with 17 blocks": (huge_jpeg(7000, 7000), Reason.TRUNCATED_IMAGE),
    "a PNG whose profile inflates to 40 MB": (png(4, 4, GOOD, more=profile(BOMB)), None),
    "a PNG whose text inflates to 40 MB": (png(4, 4, GOOD, more=text(BOMB)), None),
    "a PNG with 200 such texts": (png(4, 4, GOOD, more=text(BOMB) * 200), None),
    "a PNG of 4x4 with 40 MB of rows": (png(4, 4, GOOD + bytes(BOMB)), None),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_what_claims_or_inflates_to_much_costs_little(name: str, tmp_path: Path) -> None:
    data, wanted = CLAIMS[name]
    if wanted is not None:
        assert refusal(data) is wanted
    file = tmp_path / "picture"
    file.write_bytes(data)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 24 * 1024, f"{done.stdout.strip()} KiB more at the peak"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("form", [".png", ".jpg", ".webp"])
def test_thin_pictures_become_a_tensor(size: tuple[int, int], form: str) -> None:
    rgb = np.full((*size, 3), 200, np.uint8)
    tensor = to_tensor(decode(bytes(cv2.imencode(form, rgb)[1]), SPEC).rgb, SPEC)
    assert tensor.shape == (1, 3, SPEC.height.opt, SPEC.width.opt)
    assert np.isfinite(tensor).all()


def test_the_seeds_are_small() -> None:
    assert max(len(data) for data in SEEDS.values()) < 12_000
    assert io.BytesIO(SEEDS["gif"]).read(3) == b"GIF"
