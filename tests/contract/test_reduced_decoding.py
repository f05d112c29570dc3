"""`linear-antialias-reduced`: a JPEG is halved by its decoder where there is room for it, and nothing else changes."""

import io
import random
from itertools import product
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.diagnosis.frames import picture_file

from blurfleet import pixels
from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.errors import ContractRefused
from blurfleet.identity import digest_bytes
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet.reduced import HEADROOM, KERNEL, covering, reduced_size, reduction

CHINA, FLOWER = (picture_file(name).read_bytes() for name in ("china.jpg", "flower.jpg"))  # 427 rows, 640 columns
LEVELS: dict[str, Any] = {"scale": "1", "mean": ("0",) * 3, "std": ("1",) * 3}


def spec_of(size: int, kernel: str = KERNEL, **fields: Any) -> ContractSpec:
    return contract_at(size, ContractSpec.model_validate({**LEVELS, "resize": kernel, **fields}))


def jpeg(rgb: Any, orientation: int = 1, **options: Any) -> bytes:
    exif, out = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(rgb).save(out, "JPEG", exif=exif, **{"quality": 90, **options})
    return out.getvalue()


def photo(rows: int, columns: int) -> Any:
    whole = np.asarray(Image.open(io.BytesIO(FLOWER)))
    return cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA)


def off(one: Any, other: Any) -> float:
    """Root mean square difference in levels."""
    return float(np.sqrt(np.mean((one.astype(np.float64) - other) ** 2)))


@pytest.mark.parametrize(
    ("part", "onto", "by"),
    [
        ((1080, 1920), (320, 320), 2),
        ((720, 1280), (320, 320), 1),
        ((2160, 3840), (320, 320), 4),
        ((4320, 7680), (320, 320), 8),
        ((40000, 40000), (1, 1), 8),
        ((960, 960), (320, 320), 2),
        ((959, 4000), (320, 320), 1),
        ((4000, 959), (320, 320), 1),
        ((200, 200), (320, 320), 1),
        ((7, 7), (1, 1), 1),
        ((8, 7), (1, 1), 4),
        ((1, 4000), (1, 1), 1),
    ],
)
def test_it_is_halved_as_often_as_both_sides_keep_their_headroom(
    part: tuple[int, int], onto: tuple[int, int], by: int
) -> None:
    assert reduction(part, onto) == by


def test_the_tensor_of_a_photograph_is_pinned() -> None:
    """Other bytes are another contract: the decoder, the halving, the filter or the constants have changed."""
    spec = contract_at(96, ContractSpec(resize=KERNEL))
    assert decode(CHINA, spec).reduced_by == 2
    assert digest_bytes(to_tensor(decode(CHINA, spec), spec).tobytes()) == (
        "sha256:6cdb50ea4f4a57bc7added421d7ef48425c837aa6e303130cf4bc528da21521e"
    )


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("rows", "columns"), [(303, 401), (304, 402), (301, 400)])
def test_it_is_the_decoders_half_of_another_library_then_the_triangle_filter_over_what_the_picture_covers(
    rows: int, columns: int, orientation: int
) -> None:
    data, spec = jpeg(photo(rows, columns), orientation), spec_of(60)
    decoded = decode(data, spec)
    by = decoded.reduced_by
    assert by == 2
    stored = Image.open(io.BytesIO(data))
    stored.draft("RGB", (columns // by, rows // by))
    assert (stored.height, stored.width) == reduced_size((rows, columns), by)
    made = stored.resize((60, 60), Image.Resampling.BILINEAR, box=(0, 0, columns / by, rows / by))
    upright = made if orientation == 1 else made.transpose(
        {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
         5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
         8: Image.Transpose.ROTATE_90}[orientation])  # fmt: skip
    # The filter rounds after its columns and again after its rows: a turned picture may differ by that.
    found = to_tensor(decoded, spec)[0].transpose(1, 2, 0)
    assert np.abs(found - np.asarray(upright, np.float32)).max() <= (0 if orientation == 1 else 1)
    assert decoded.orientation_applied == orientation
    assert decoded.decoded_size == ((rows, columns) if orientation < 5 else (columns, rows))
    assert decoded.rgb.shape[:2] == reduced_size(decoded.decoded_size, by)


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("data", [CHINA, FLOWER], ids=["china", "flower"])
def test_it_stays_near_the_whole_pictures_tensor_whatever_the_fit_and_turn(
    data: bytes, orientation: int, fit: str
) -> None:
    """Measured: at most 1.6; with the cut-off pixels of 425 rows and 637 columns taken for whole ones, 2.5 to 6.4."""
    rgb = np.asarray(Image.open(io.BytesIO(data)))[:-2, :-3]
    turned = jpeg(rgb, orientation, quality=95)
    spec, whole = spec_of(100, fit=fit), spec_of(100, "linear-antialias", fit=fit)
    assert decode(turned, spec).reduced_by > 1
    assert off(to_tensor(decode(turned, spec), spec), to_tensor(decode(turned, whole), whole)) < 1.8


def test_the_crop_shows_the_very_pixels_that_the_whole_pictures_crop_shows() -> None:
    assert covering((0, 13, 427, 427), (427, 640), 2, 1) == ((slice(0, 214), slice(6, 220)), (0.5, 0, 214, 213.5))
    assert covering((0, 13, 427, 427), (427, 640), 2, 3) == ((slice(0, 214), slice(6, 220)), (0.5, 0.5, 214, 214))
    assert covering((0, 0, 9, 11), (9, 11), 4, 2) == ((slice(0, 3), slice(0, 3)), (0.25, 0, 3, 2.25))


def test_no_picture_is_enlarged_for_it_and_the_decoder_uses_the_scale_that_was_meant() -> None:
    compared = 0
    for rows, columns, size in product((1, 3, 7, 8, 9, 17, 31), (1, 2, 6, 9, 16, 33), (1, 2, 5)):
        data, spec = jpeg(photo(rows, columns)), spec_of(size)
        decoded = decode(data, spec)
        by = decoded.reduced_by
        assert decoded.rgb.shape[:2] == reduced_size((rows, columns), by)
        assert by == 1 or min(rows, columns) >= HEADROOM * by * size
        if by > 1:
            half = Image.open(io.BytesIO(data))
            half.draft("RGB", (columns // by, rows // by))
            compared += half.size == (decoded.rgb.shape[1], decoded.rgb.shape[0])
            if half.size == (decoded.rgb.shape[1], decoded.rgb.shape[0]):
                np.testing.assert_array_equal(decoded.rgb, np.asarray(half))
        assert to_tensor(decoded, spec).shape == (1, 3, size, size)
    assert compared > 20


def test_grey_is_reduced_too() -> None:
    data, spec = jpeg(photo(300, 400)[..., 1]), spec_of(60)
    decoded = decode(data, spec)
    assert (decoded.source_mode, decoded.reduced_by) == ("L", 2)
    assert np.ptp(decoded.rgb, axis=2).max() == 0
    whole = spec_of(60, "linear-antialias")
    assert off(to_tensor(decoded, spec), to_tensor(decode(data, whole), whole)) < 1.5


def damaged() -> bytes:
    """A JPEG that OpenCV decodes and the strict decoder complains of."""
    data = jpeg(photo(300, 400))
    return data[:-2] + bytes(9) + data[-2:]  # bytes of nothing before the end-of-image mark


def others() -> dict[str, bytes]:
    rgb = photo(300, 400)
    cmyk = io.BytesIO()
    Image.fromarray(rgb).convert("CMYK").save(cmyk, "JPEG")
    bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    return {
        "PNG": bytes(cv2.imencode(".png", bgr)[1]),
        "WebP": bytes(cv2.imencode(".webp", bgr)[1]),
        "16-bit PNG": bytes(cv2.imencode(".png", bgr.astype(np.uint16) * 257)[1]),
        "CMYK": cmyk.getvalue(),
        "a JPEG with a fault": damaged(),
        "a small JPEG": jpeg(photo(89, 400)),
    }


@pytest.mark.parametrize("kind", others())
@pytest.mark.parametrize("fit", ["stretch", "crop"])
def test_every_other_source_has_the_tensor_of_linear_antialias(kind: str, fit: str) -> None:
    data, spec, plain = others()[kind], spec_of(60, fit=fit), spec_of(60, "linear-antialias", fit=fit)
    decoded = decode(data, spec)
    assert decoded.reduced_by == 1
    assert to_tensor(decoded, spec).tobytes() == to_tensor(decode(data, plain), plain).tobytes()
    assert to_tensor(decoded.rgb, spec).tobytes() == to_tensor(decoded, spec).tobytes()


def _found(data: bytes, by: int) -> Any:
    """Whether the strict decoder finds the JPEG sound at that size, or why it refuses it."""
    try:
        return pixels._sound_jpeg(data, pixels.read_header(data), by) is not None
    except ContractRefused as error:
        return error.reason


def test_a_fault_is_the_same_fault_at_every_size() -> None:
    chance, seed = random.Random(1), jpeg(photo(300, 400))
    begin = seed.index(b"\xff\xda") + 14
    seen: list[Any] = []
    for _ in range(200):
        data = bytearray(seed)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(begin, len(data) - 2)] = chance.randrange(255)
        found = {_found(bytes(data), by) for by in (1, 2, 4, 8)}
        assert len(found) == 1
        seen += found
    assert min(seen.count(kind) for kind in (True, False, Reason.TRUNCATED_IMAGE)) > 5


def test_the_most_pixels_are_those_of_the_full_size_and_nothing_is_decoded_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = jpeg(photo(300, 400))
    assert decode(data, spec_of(60, max_pixels=300 * 400)).reduced_by == 2

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(pixels.simplejpeg, "decode_jpeg", refuse)
    with pytest.raises(ContractRefused) as refused:
        decode(data, spec_of(60, max_pixels=300 * 400 - 1))
    assert refused.value.reason is Reason.IMAGE_TOO_LARGE


def test_the_whole_picture_can_be_had_and_no_other_kernel_reduces() -> None:
    whole = decode(FLOWER, spec_of(60), whole=True)
    assert (whole.reduced_by, whole.rgb.shape) == (1, (427, 640, 3))
    for kernel in ("area", "linear", "linear-antialias", "cubic-antialias", "lanczos"):
        assert decode(FLOWER, spec_of(60, kernel)).reduced_by == 1
