"""Image bytes to tensor: the right value for each kind of picture that breaks systems like this one."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, SizeRange, contract_at
from blurfleet.errors import ContractRefused
from blurfleet.imageheader import read_header
from blurfleet.pixels import Decoded, decode, placement, resize, to_tensor
from blurfleet.reasons import Reason

CASES = Path(__file__).parents[1] / "cases" / "img"
RED, GREEN, BLUE, YELLOW = (254, 0, 0), (0, 255, 1), (0, 0, 254), (255, 255, 0)


def case(name: str, spec: ContractSpec = DEFAULT_CONTRACT) -> Decoded:
    return decode((CASES / name).read_bytes(), spec)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour: int, raw: bytes, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(raw))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + pixels + chunk(b"IEND", b"")


def near(pixel: object, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.asarray(pixel, dtype=float) - colour).max() <= 3)


def test_red_lands_in_channel_zero_at_its_normalised_value() -> None:
    tensor = to_tensor(case("pure_red.png").rgb, DEFAULT_CONTRACT)
    assert tensor.shape == (1, 3, 320, 320)
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    wanted = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    assert tensor.mean((0, 2, 3), dtype=np.float64) == pytest.approx(wanted, abs=1e-6)


def test_a_bgr_contract_puts_blue_first_and_reads_mean_and_std_in_tensor_order() -> None:
    spec = ContractSpec(color_order="BGR", mean=("0.1", "0.2", "0.3"), std=("1", "1", "0.5"))
    tensor = to_tensor(case("pure_red.png").rgb, spec)
    assert tensor[0, :, 5, 5] == pytest.approx([-0.1, -0.2, 1.4], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "orientation", "size"),
    [
        ("exif_o1.jpg", 1, (48, 80)),
        ("exif_o3.jpg", 3, (48, 80)),
        ("exif_o6.jpg", 6, (80, 48)),
        ("exif_o8.jpg", 8, (80, 48)),
        ("exif_o6.png", 6, (80, 48)),
    ],
)
def test_orientation_is_applied_exactly_once(name: str, orientation: int, size: tuple[int, int]) -> None:
    decoded = case(name)
    stored = case(name, ContractSpec(orientation="ignore"))
    assert decoded.orientation_applied == orientation
    assert decoded.decoded_size == size == decoded.rgb.shape[:2]
    corners = [stored.rgb[4, 4], stored.rgb[4, -5], stored.rgb[-5, 4], stored.rgb[-5, -5]]
    turned = {1: (0, 1, 2, 3), 3: (3, 2, 1, 0), 6: (2, 0, 3, 1), 8: (1, 3, 0, 2)}[orientation]
    upright = [decoded.rgb[4, 4], decoded.rgb[4, -5], decoded.rgb[-5, 4], decoded.rgb[-5, -5]]
    assert all(near(upright[i], tuple(corners[turned[i]])) for i in range(4))
    assert [near(c, w) for c, w in zip(corners, (RED, GREEN, BLUE, YELLOW), strict=True)] == [True] * 4
    assert stored.orientation_applied == 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_of_the_eight_orientations_is_undone(orientation: int) -> None:
    upright = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    # How a camera would have stored it: the inverse of what the tag asks of the reader (EXIF 2.32, tag 0x0112).
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    height, width = stored.shape[:2]
    raw = b"".join(b"\x00" + np.ascontiguousarray(row).tobytes() for row in stored)
    exif = b"II*\x00\x08\x00\x00\x00\x01\x00" + struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    decoded = decode(png(width, height, 8, 2, raw, chunk(b"eXIf", exif)), DEFAULT_CONTRACT)
    np.testing.assert_array_equal(decoded.rgb, upright)


def test_grey_is_three_equal_channels() -> None:
    decoded = case("gray8.jpg")
    assert decoded.source_mode == "L"
    assert np.ptp(decoded.rgb, axis=2).max() == 0
    assert decoded.rgb[0, 0, 0] == 76


def test_sixteen_bits_keep_all_their_levels() -> None:
    decoded = case("gray16_ramp.png")
    assert decoded.source_mode == "L;16"
    assert decoded.rgb.dtype == np.float32
    assert len(np.unique(decoded.rgb)) == 256
    np.testing.assert_allclose(decoded.rgb[0, :, 1], np.arange(256), atol=0.51)
    assert decoded.rgb.max() == 255.0


def test_a_sixteen_bit_picture_gives_the_tensor_of_its_eight_bit_twin() -> None:
    spec = contract_at(16)
    eight = np.random.default_rng(5).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    wide = (eight.astype(">u2") * 257).astype(">u2")
    narrow = png(16, 16, 8, 2, b"".join(b"\x00" + row.tobytes() for row in eight))
    deep = png(16, 16, 16, 2, b"".join(b"\x00" + row.tobytes() for row in wide))
    assert decode(deep, spec).source_mode == "RGB;16"
    np.testing.assert_array_equal(to_tensor(decode(deep, spec).rgb, spec), to_tensor(decode(narrow, spec).rgb, spec))


@pytest.mark.parametrize("background", [(255, 255, 255), (10, 200, 30)])
def test_transparent_pixels_show_the_background_and_no_hidden_red(background: tuple[int, int, int]) -> None:
    rgb = case("rgba_hidden_red.png", ContractSpec(background=background)).rgb
    assert rgb[0, 0].tolist() == list(background)
    assert {tuple(p) for p in rgb.reshape(-1, 3).tolist()} == {background, (0, 128, 0)}


def test_a_palette_with_a_transparent_index_is_laid_on_the_background() -> None:
    decoded = case("palette_trns.png")
    assert decoded.source_mode == "P"
    assert decoded.rgb[0, 0].tolist() == [255, 255, 255]


def test_half_transparent_mixes_to_the_nearest_level() -> None:
    decoded = decode(png(1, 1, 8, 6, bytes([0, 200, 0, 77, 128])), ContractSpec(background=(0, 100, 255)))
    assert decoded.rgb[0, 0].tolist() == [100, 50, 166]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_compositing_rounds_to_nearest_over_the_whole_range_and_every_band(kind: type[np.unsignedinteger]) -> None:
    top = int(np.iinfo(kind).max)
    rng = np.random.default_rng(8)
    rgba = rng.integers(0, top + 1, (600, 7, 4), dtype=kind)
    rgba[:2, :, 3] = [[0] * 7, [top] * 7]
    rgba[2:4] = [[[top] * 4] * 7, [[0, 0, 0, 1]] * 7]
    data = bytes(cv2.imencode(".png", rgba[..., [2, 1, 0, 3]])[1])
    rgb = decode(data, ContractSpec(background=(255, 0, 77))).rgb
    cover = rgba[..., 3:].astype(np.float64) / top
    wanted = rgba[..., :3] * cover + np.array([255, 0, 77]) * (top / 255) * (1 - cover)
    np.testing.assert_allclose(rgb.astype(np.float64) * (top / 255), wanted, atol=0.51 if top == 255 else 0.6)


@pytest.mark.parametrize(
    ("depth", "raw", "key", "kept"),
    [
        (8, bytes([0, 7, 9]), 7, 9.0),
        (16, b"\x00" + struct.pack(">2H", 700, 257 * 9), 700, 9.0),
        (4, bytes([0, 0x3F]), 3, 255.0),
    ],
    ids=["8 bit", "16 bit", "4 bit"],
)
def test_the_transparent_level_of_a_grey_png_is_background(depth: int, raw: bytes, key: int, kept: float) -> None:
    rgb = decode(png(2, 1, depth, 0, raw, chunk(b"tRNS", struct.pack(">H", key))), DEFAULT_CONTRACT).rgb
    assert rgb[0, :, 0].tolist() == [255.0, kept]


def test_adobe_cmyk_red_is_red() -> None:
    decoded = case("cmyk_red_adobe.jpg")
    assert decoded.source_mode == "CMYK"
    assert near(decoded.rgb[16, 16], (255, 0, 0))


def _truncations() -> list[tuple[str, bytes, Reason]]:
    whole = (CASES / "pure_red.png").read_bytes()
    webp = bytes(cv2.imencode(".webp", np.full((20, 20, 3), 90, np.uint8))[1])
    return [
        ("no bytes", b"", Reason.EMPTY_IMAGE),
        ("half a baseline JPEG", (CASES / "trunc_base.jpg").read_bytes(), Reason.TRUNCATED_IMAGE),
        ("half a progressive JPEG", (CASES / "trunc_prog.jpg").read_bytes(), Reason.TRUNCATED_IMAGE),
        ("a JPEG without its last byte", (CASES / "exif_o1.jpg").read_bytes()[:-1], Reason.TRUNCATED_IMAGE),
        ("a PNG without its IEND", whole[:-12], Reason.TRUNCATED_IMAGE),
        ("a PNG cut in its header", whole[:20], Reason.TRUNCATED_IMAGE),
        ("half a WebP", webp[: len(webp) // 2], Reason.TRUNCATED_IMAGE),
        ("a GIF", b"GIF89a" + bytes(40), Reason.UNSUPPORTED_IMAGE),
        ("text", b"hello", Reason.UNSUPPORTED_IMAGE),
        ("a PNG with too little data", png(2, 40, 8, 0, bytes(30)), Reason.UNSUPPORTED_IMAGE),
        ("a bomb", png(60000, 60000, 8, 2, bytes(50_000)), Reason.IMAGE_TOO_LARGE),
    ]


@pytest.mark.parametrize(("data", "reason"), [pytest.param(d, r, id=n) for n, d, r in _truncations()])
def test_a_picture_that_is_not_whole_or_not_ours_is_refused_by_name(data: bytes, reason: Reason) -> None:
    with pytest.raises(ContractRefused) as caught:
        decode(data, DEFAULT_CONTRACT)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ({"alpha": "refuse"}, "palette_trns.png"),
        ({"orientation": "refuse"}, "exif_o6.png"),
        ({"sixteen_bit": "refuse"}, "gray16_ramp.png"),
        ({"grey": "refuse"}, "gray8.jpg"),
        ({"palette": "refuse"}, "palette_trns.png"),
        ({"cmyk": "refuse"}, "cmyk_red_adobe.jpg"),
        ({"max_pixels": 255}, "pure_red.png"),
    ],
    ids=str,
)
def test_what_the_contract_refuses_is_refused(rule: dict[str, object], name: str) -> None:
    with pytest.raises(ContractRefused):
        case(name, ContractSpec.model_validate(rule))


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_jpegs_missing_end_is_seen_without_decoding_it(cut: int) -> None:
    with pytest.raises(ContractRefused) as caught:
        read_header((CASES / "exif_o1.jpg").read_bytes()[:-cut])
    assert caught.value.reason is Reason.TRUNCATED_IMAGE


def test_webp_is_read() -> None:
    blue = np.zeros((24, 24, 3), np.uint8)
    blue[..., 0] = 255
    decoded = decode(bytes(cv2.imencode(".webp", blue, [cv2.IMWRITE_WEBP_QUALITY, 101])[1]), DEFAULT_CONTRACT)
    assert decoded.rgb[3, 3].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("kernel", "low", "high", "row"),
    [
        ("area", 64, 64, [96, 140, 136]),
        ("linear", 0, 0, [128, 108, 152]),
        ("linear-antialias", 46, 73, [112, 125, 136]),
        ("linear-antialias-reduced", 46, 73, [112, 125, 136]),
        ("cubic-antialias", 45, 74, [109, 127, 138]),
        ("lanczos", 44, 76, [108, 128, 139]),
    ],
)
def test_each_kernel_is_the_one_it_says(kernel: str, low: int, high: int, row: list[int]) -> None:
    lines = resize(case("lines_period4.png").rgb, (64, 64), kernel)
    assert (lines.min(), lines.max()) == (low, high)
    pattern = ((np.arange(12)[:, None] * 37 + np.arange(12)[None, :] * 91) % 256).astype(np.uint8)
    colours = np.dstack([pattern, 255 - pattern, pattern // 2])
    assert resize(colours, (3, 3), kernel)[0, :, 0].tolist() == row
    as_float = resize(colours.astype(np.float32), (3, 3), kernel)
    assert as_float.dtype == np.float32
    np.testing.assert_allclose(as_float[0, :, 0], row, atol=1.0)


def test_linear_antialias_is_the_triangle_filter_widened_by_the_shrink() -> None:
    source = np.random.default_rng(3).uniform(0, 255, 30).astype(np.float32)
    wanted = []
    for out in range(12):
        ratio = 30 / 12
        weights = np.maximum(0.0, 1 - np.abs((np.arange(30) + 0.5 - (out + 0.5) * ratio) / ratio))
        wanted.append(float((weights * source).sum() / weights.sum()))
    picture = np.repeat(np.repeat(source[None, :, None], 12, axis=0), 3, axis=2)
    np.testing.assert_allclose(resize(picture, (12, 12), "linear-antialias")[4, :, 1], wanted, atol=1e-3)


def test_the_same_bytes_give_the_same_tensor_byte_for_byte() -> None:
    data = (CASES / "exif_o6.jpg").read_bytes()
    tensors = {to_tensor(decode(data, DEFAULT_CONTRACT).rgb, DEFAULT_CONTRACT).tobytes() for _ in range(5)}
    assert len(tensors) == 1


def test_a_letterbox_keeps_the_aspect_and_pads_with_the_background() -> None:
    spec = contract_at(32, ContractSpec(fit="letterbox", scale="1", mean=("0",) * 3, std=("1",) * 3))
    spec = spec.model_copy(update={"background": (9, 8, 7)})
    tensor = to_tensor(np.full((10, 40, 3), 200, np.uint8), spec)
    assert placement((10, 40), spec).tensor == (12, 0, 8, 32)
    assert tensor[0, :, 11, 0].tolist() == [9, 8, 7]
    assert tensor[0, :, 12:20].min() == 200 == tensor[0, :, 12:20].max()
    assert tensor[0, :, 20, 31].tolist() == [9, 8, 7]


def test_a_crop_takes_the_middle() -> None:
    spec = contract_at(10, ContractSpec(fit="crop", scale="1", mean=("0",) * 3, std=("1",) * 3))
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = 77
    assert placement((10, 40), spec).picture == (0, 15, 10, 10)
    assert set(np.unique(to_tensor(wide, spec))) == {77.0}


def test_nhwc_is_the_same_tensor_with_channels_last() -> None:
    rgb = case("exif_o1.jpg").rgb
    spec = ContractSpec(height=SizeRange(min=8, opt=8, max=8), width=SizeRange(min=12, opt=12, max=12))
    last = to_tensor(rgb, spec.model_copy(update={"layout": "NHWC"}))
    assert last.shape == (1, 8, 12, 3)
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), to_tensor(rgb, spec))


_SEEDS = [(CASES / n).read_bytes() for n in ("exif_o6.jpg", "exif_o6.png", "palette_trns.png", "trunc_prog.jpg")]
_SEEDS.append(bytes(cv2.imencode(".webp", np.random.default_rng(1).integers(0, 255, (16, 16, 3), np.uint8))[1]))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(_SEEDS),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=6),
    st.integers(0, 900),
)
def test_damaged_bytes_decode_or_are_refused_and_nothing_else(
    seed: bytes, edits: list[tuple[int, int]], keep: int
) -> None:
    data = bytearray(seed)
    for at, value in edits:
        if at < len(data):
            data[at] = value
    spec = contract_at(16, ContractSpec(max_pixels=1 << 20))
    for candidate in (bytes(data), bytes(data[:keep])):
        try:
            decoded = decode(candidate, spec)
        except ContractRefused:
            continue
        assert decoded.rgb.shape == (*decoded.decoded_size, 3)
        assert np.isfinite(to_tensor(decoded.rgb, spec)).all()
