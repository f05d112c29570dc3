"""How far `linear-antialias-reduced` lets the JPEG decoder shrink a picture, and where the picture lies in the result.

The decoder's scaled inverse transform halves a picture while decoding it, and leaves the resize a quarter of the work.
Only halvings: libjpeg-turbo has vector code for 1/2, 1/4 and 1/8, and takes longer for 5/8 than for the whole.
"""

from __future__ import annotations

from math import ceil, floor

KERNEL = "linear-antialias-reduced"
HEADROOM = 1.5
"""Both sides keep at least so many times the length they are resized to.

Measured against the same filter from full size on seven JPEG photographs: 0.7 to 2.1 grey levels root mean square at
1.5 (0.5 to 0.8 for 1920x1080 -> 320), 1.0 to 5.3 at 1.0. Another kernel of the contract is 1.7 to 4.3 off.
"""
_BLOCK = 8  # pixels; below it two scales of the decoder can give the same size


def reduction(part: tuple[int, int], onto: tuple[int, int]) -> int:
    """Return by how much (1, 2, 4 or 8) the decoder may divide both sides.

    `part` is (height, width) in pixels of what is shown of the picture at full size, `onto` what it is resized to.
    """
    if max(part) < _BLOCK:
        return 1
    fits = (by for by in (8, 4, 2) if all(p >= HEADROOM * by * o for p, o in zip(part, onto, strict=True)))
    return next(fits, 1)


def reduced_size(size: tuple[int, int], by: int) -> tuple[int, int]:
    """Return (height, width) that a JPEG of `size` decodes to: a block that is cut off counts as whole."""
    return -(-size[0] // by), -(-size[1] // by)


def covering(
    part: tuple[int, int, int, int], size: tuple[int, int], by: int, orientation: int
) -> tuple[tuple[slice, slice], tuple[float, float, float, float]]:
    """Return the pixels of the upright reduced picture that show `part`, and (left, top, right, bottom) of it in them.

    `part` is (top, left, height, width) of the upright picture of `size` (height, width) at full size. The last row and
    column of the stored picture may be shown in part only; EXIF `orientation` says at which side they are now.
    """
    top, left, height, width = part
    rows, columns = reduced_size(size, by)
    above = rows - size[0] / by if orientation in (3, 4, 7, 8) else 0.0
    before = columns - size[1] / by if orientation in (2, 3, 6, 7) else 0.0
    first, last = above + top / by, above + (top + height) / by
    begin, end = before + left / by, before + (left + width) / by
    row, column = floor(first), floor(begin)
    return (
        (slice(row, ceil(last)), slice(column, ceil(end))),
        (begin - column, first - row, end - column, last - row),
    )
