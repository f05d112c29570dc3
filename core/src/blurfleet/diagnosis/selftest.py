"""The known picture of the self-test: a client sends its tensor of it and learns what it does wrong.

The picture is made so that every fault shows: no two channels, sides or corners are alike, a zone plate and fine lines
tell kernels and grids apart, saturated patches survive integer division. It is made from formulas, never stored.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from blurfleet.api.contract import ContractSpec, SizeRange
from blurfleet.check import CheckReport, Finding, Severity
from blurfleet.contract import contract_hash
from blurfleet.diagnosis.diagnose import diagnose, spec_at
from blurfleet.diagnosis.report import report_of
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet.reduced import KERNEL as REDUCED

Form = Literal["png", "jpg"]
HEIGHT, WIDTH = 720, 960
JPEG_ORIENTATION = 6  # stored a quarter turn to the left: a client that ignores the tag sends it lying
_EXIF_ORIENTATION = 0x0112
_PATCHES = (  # rows, columns, colour
    ((30, 130), (40, 140), (255, 0, 0)),
    ((30, 130), (160, 260), (0, 255, 0)),
    ((150, 250), (40, 140), (0, 0, 255)),
    ((150, 250), (160, 260), (255, 255, 255)),
    ((600, 690), (820, 930), (0, 0, 0)),
    ((560, 690), (30, 90), (255, 220, 0)),
)


def selftest_picture() -> npt.NDArray[np.uint8]:
    """Return the picture, upright RGB [720,960,3] uint8."""
    down, right = np.mgrid[0:HEIGHT, 0:WIDTH] / float(HEIGHT)
    waves = [
        0.5 + 0.45 * np.sin(7.0 * right + 3.0 * down + 0.3),
        0.45 + 0.4 * np.sin(4.0 * right - 9.0 * down + 1.7) * (0.4 + 0.45 * right),
        0.5 + 0.45 * np.cos(11.0 * down + 2.0 * right) * (1.0 - 0.6 * down),
    ]
    picture = np.stack(waves, axis=-1)
    plate = 0.5 + 0.5 * np.cos(900.0 * ((down - 0.62) ** 2 + (right - 0.9) ** 2))
    inside = (down - 0.62) ** 2 + (right - 0.9) ** 2 < 0.3**2
    picture[inside] = plate[inside, None] * np.array([1.0, 0.85, 0.55])
    rows, columns = np.arange(HEIGHT)[:, None], np.arange(WIDTH)[None, :]
    fine = ((columns % 3 == 0) & (rows > 300) & (rows < 420) & (columns > 30) & (columns < 250)) | (
        ((rows + 2 * columns) % 7 < 2) & (rows > 40) & (rows < 200) & (columns > 640) & (columns < 900)
    )
    picture[fine] = (1.0, 0.95, 0.1)
    levels: npt.NDArray[np.uint8] = np.clip(np.rint(255 * picture), 0, 255).astype(np.uint8)
    for (top, bottom), (left, edge), colour in _PATCHES:
        levels[top:bottom, left:edge] = colour
    return levels


@lru_cache(maxsize=2)
def picture_bytes(form: Form) -> bytes:
    """Return the picture as a file: PNG, or a JPEG whose orientation tag has to be applied."""
    upright, out = selftest_picture(), io.BytesIO()
    if form == "png":
        Image.fromarray(upright).save(out, "PNG")
        return out.getvalue()
    exif = Image.Exif()
    exif[_EXIF_ORIENTATION] = JPEG_ORIENTATION
    Image.fromarray(np.ascontiguousarray(np.rot90(upright))).save(out, "JPEG", quality=92, subsampling=0, exif=exif)
    return out.getvalue()


def examine(observed: npt.NDArray[Any], spec: ContractSpec, form: Form = "png") -> CheckReport:
    """Return what the client did to the self-test picture on its way to `observed`, any array of numbers.

    The reference has the observed size where the contract's profile allows that, else the profile's best. Raises
    ContractRefused (NonFiniteInput, ImpossibleInput, WrongShape; a contract that refuses the orientation tag).
    """
    fixed = spec_at(spec, _size_of(observed, spec))
    data = picture_bytes(form)
    picture, reduced = decode(data, fixed, whole=True).rgb, decode(data, fixed.model_copy(update={"resize": REDUCED}))
    found = diagnose(to_tensor(decode(data, fixed), fixed), observed, fixed, picture, reduced)
    report = report_of(f"selftest.{form}", found, {"contract_hash": contract_hash(spec), "picture": form})
    if observed.dtype == np.float32:
        return report
    dtype = Finding(
        severity=Severity.ERROR,
        reason=Reason.WRONG_DTYPE,
        where="tensor",
        message=f"{observed.dtype} numbers; the contract's are {spec.dtype}",
    )
    return CheckReport(path=report.path, findings=(dtype, *report.findings), facts=report.facts)


def _size_of(observed: npt.NDArray[Any], spec: ContractSpec) -> tuple[int, int]:
    """Return (height, width) of the observation where the profile allows them, else the profile's best."""
    best = (spec.height.opt, spec.width.opt)
    if observed.ndim != 4:
        return best
    height, width = observed.shape[2:] if spec.layout == "NCHW" else observed.shape[1:3]
    allowed = _within(height, spec.height) and _within(width, spec.width)
    return (height, width) if allowed else best


def _within(length: int, limits: SizeRange) -> bool:
    return limits.min <= length <= limits.max and length % limits.multiple_of == 0
