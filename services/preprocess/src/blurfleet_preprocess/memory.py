"""Freed tensors stay with the process: to fault the same megabytes in anew at every request costs it 0.5 ms."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's mallopt
KEPT_BLOCK_BYTES = 4 << 20  # a 320x320 tensor and its float64 are 1.2 and 2.4 MB; decoded pictures are given back
KEPT_FREE_BYTES = 16 << 20  # per arena


def keep_freed_blocks() -> bool:
    """Tell glibc to keep freed blocks up to these sizes; return whether it does. Another C library is left alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, KEPT_BLOCK_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_FREE_BYTES))
