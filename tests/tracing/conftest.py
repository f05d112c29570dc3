"""A collector for each test that asks for one, and a small picture to send."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
import pytest
from tests.tracing.collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A running collector."""
    with collecting() as made:
        yield made


@pytest.fixture
def photo() -> bytes:
    rgb = np.random.default_rng(2).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    return bytes(cv2.imencode(".png", rgb)[1])
