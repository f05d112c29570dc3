"""Mattes as pictures for reports: grey matte, difference heat map, PNG bytes."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.errors import InvalidInput
from blurfleet.quality.sentinel import as_matte
from blurfleet.reasons import Reason

Picture = npt.NDArray[np.uint8]
_NON_FINITE_COLOUR = (255, 0, 255)


def matte_picture(matte: npt.NDArray[np.floating]) -> Picture:
    """Return the matte ([H,W] in [0,1]) as RGB uint8 [H,W,3], clipped; non-finite pixels are magenta."""
    values = as_matte(matte, "matte")
    grey = _bytes(values)
    return _marked(np.dstack([grey, grey, grey]), values)


def heatmap(
    candidate: npt.NDArray[np.floating], oracle: npt.NDArray[np.floating], *, full_scale: float = 0.0
) -> Picture:
    """Return |candidate - oracle| as RGB uint8 [H,W,3], dark to bright; non-finite pixels are magenta.

    `full_scale` is the difference drawn brightest; 0 takes the largest one. Raises InvalidInput (WrongShape).
    """
    cand, ref = as_matte(candidate, "candidate"), as_matte(oracle, "oracle")
    if cand.shape != ref.shape:
        message = f"candidate is {list(cand.shape)} but oracle is {list(ref.shape)}"
        raise InvalidInput(Reason.WRONG_SHAPE, message, where="candidate")
    with np.errstate(invalid="ignore"):
        difference = np.abs(cand - ref)
    finite = difference[np.isfinite(difference)]
    top = full_scale or (float(finite.max()) if finite.size else 0.0)
    painted = cv2.applyColorMap(_bytes(difference / np.float32(top or 1.0)), cv2.COLORMAP_INFERNO)
    return _marked(np.asarray(cv2.cvtColor(painted, cv2.COLOR_BGR2RGB), dtype=np.uint8), difference)


def to_picture(rgb: Picture) -> bytes:
    """Return RGB uint8 [H,W,3] as the bytes of a PNG."""
    done, data = cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    if not done:
        raise InvalidInput(Reason.WRONG_SHAPE, f"{list(rgb.shape)} cannot be written as a PNG")
    return data.tobytes()


def _bytes(values: npt.NDArray[np.float32]) -> Picture:
    scaled = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255
    return np.asarray(np.rint(scaled), dtype=np.uint8)


def _marked(rgb: npt.NDArray[np.uint8], values: npt.NDArray[np.float32]) -> Picture:
    marked = rgb.copy()
    marked[~np.isfinite(values)] = _NON_FINITE_COLOUR
    return marked
