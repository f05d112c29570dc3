"""Which matte is served: the decision table of the sentinel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameKind
from blurfleet_preprocess.screening import settle

SUBJECT = np.zeros((8, 8), np.float32)
SUBJECT[2:5, 2:5] = 1.0
EMPTY = np.zeros((8, 8), np.float32)
FULL = np.ones((8, 8), np.float32)
NAN = SUBJECT.copy()
NAN[0, 0] = np.nan
INF = SUBJECT.copy()
INF[0, 0] = np.inf
OUTSIDE = SUBJECT - 0.5
N, R, C = Reason.NON_FINITE_OUTPUT, Reason.OUT_OF_RANGE_OUTPUT, Reason.COLLAPSED_OUTPUT


@pytest.mark.parametrize(
    ("matte", "fallback", "use", "kind", "reason"),
    [
        pytest.param(SUBJECT, None, "Engine", "sample", None, id="a sound matte is served"),
        pytest.param(NAN, SUBJECT, "Fallback", "withheld", N, id="NaN is withheld and the fallback answers"),
        pytest.param(INF, SUBJECT, "Fallback", "withheld", N, id="Inf is withheld and the fallback answers"),
        pytest.param(
            OUTSIDE, SUBJECT, "Fallback", "withheld", R, id="out of range is withheld and the fallback answers"
        ),
        pytest.param(NAN, EMPTY, "Fallback", "withheld", N, id="an empty answer is better than NaN"),
        pytest.param(NAN, NAN, "Neither", "withheld", N, id="two bad mattes are no answer"),
        pytest.param(OUTSIDE, NAN, "Neither", "withheld", R, id="out of range and NaN are no answer"),
        pytest.param(NAN, None, "Neither", "withheld", N, id="NaN without a fallback is no answer"),
        pytest.param(EMPTY, EMPTY, "Engine", "sample", None, id="a scene both find empty is a plain frame"),
        pytest.param(FULL, FULL, "Engine", "sample", None, id="a scene both find full is a plain frame"),
        pytest.param(EMPTY, SUBJECT, "Fallback", "suspect", C, id="a subject only the fallback sees is served from it"),
        pytest.param(EMPTY, FULL, "Fallback", "suspect", C, id="empty against full is a disagreement"),
        pytest.param(EMPTY, NAN, "Engine", "suspect", C, id="a rotten fallback does not replace an empty matte"),
        pytest.param(EMPTY, None, "Engine", "suspect", C, id="an empty matte nobody can check is served and reported"),
    ],
)
def test_what_becomes_of_a_matte(
    matte: np.ndarray, fallback: np.ndarray | None, use: str, kind: str, reason: Reason | None
) -> None:
    settled = settle(matte, fallback)
    assert (settled.use, settled.kind, settled.reason) == (use, FrameKind(kind), reason)


_mattes = hnp.arrays(np.float32, (4, 4), elements=st.one_of(st.floats(0, 1, width=32), st.floats(width=32)))


@settings(deadline=None)
@given(_mattes, st.one_of(st.none(), _mattes))
def test_what_is_served_is_finite_and_in_range(matte: np.ndarray, fallback: np.ndarray | None) -> None:
    settled = settle(matte, fallback)
    served = {"Engine": matte, "Fallback": fallback, "Neither": None}[settled.use]
    if served is not None:
        assert np.isfinite(served).all()
        assert served.min() >= -1e-3
        assert served.max() <= 1 + 1e-3
