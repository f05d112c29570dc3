"""Structural similarity with scikit-image's defaults: 7x7 uniform window, sample covariance, data_range 1."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.quality.sentinel import Matte

SSIM_WINDOW = 7
_C1, _C2 = 0.01**2, 0.03**2
_SAMPLE = SSIM_WINDOW**2 / (SSIM_WINDOW**2 - 1)  # sample covariance
_BAND_PIXELS = 8192


def similarity(ref: Matte, cand: Matte) -> float | None:
    """Return the SSIM of two finite float32 mattes [H,W] in [0,1], -1..1; None where a side is below 7.

    Worked band by band in one scratch block: fresh pages cost more than the arithmetic.
    """
    height, width = ref.shape
    if min(height, width) < SSIM_WINDOW:
        return None
    halo = SSIM_WINDOW - 1
    rows = max(SSIM_WINDOW, _BAND_PIXELS // width)
    scratch = np.empty((7, min(rows + halo, height), width), dtype=np.float64)
    total = 0.0
    for top in range(0, height - halo, rows):
        band = slice(top, min(top + rows + halo, height))
        total += _ssim_sum(ref[band], cand[band], scratch[:, : band.stop - band.start])
    return total / float((height - halo) * (width - halo))


def _ssim_sum(ref: Matte, cand: Matte, scratch: npt.NDArray[np.float64]) -> float:
    x, y, mean_x, mean_y, covariance, variance, cross = scratch
    x[:], y[:] = ref, cand
    _window_mean(x, mean_x)
    _window_mean(y, mean_y)
    np.multiply(x, y, out=cross)
    _window_mean(cross, covariance)
    x *= x
    y *= y
    x += y
    _window_mean(x, variance)
    np.multiply(mean_x, mean_y, out=cross)
    covariance -= cross
    covariance *= 2 * _SAMPLE
    covariance += _C2
    mean_x *= mean_x
    mean_y *= mean_y
    mean_x += mean_y
    variance -= mean_x
    variance *= _SAMPLE
    variance += _C2
    cross *= 2
    cross += _C1
    cross *= covariance
    mean_x += _C1
    mean_x *= variance
    cross /= mean_x
    pad = SSIM_WINDOW // 2
    return float(cross[pad:-pad, pad:-pad].sum())


def _window_mean(values: npt.NDArray[np.float64], out: npt.NDArray[np.float64]) -> None:
    cv2.boxFilter(values, cv2.CV_64F, (SSIM_WINDOW, SSIM_WINDOW), dst=out)
