"""The role that an answer names: what the node serves it as, not what else the engine could be."""

from __future__ import annotations

from typing import Literal

import pytest

from blurfleet.serving.routing import Route, RoutedEngine
from blurfleet_preprocess.dataplane import Snapshot

MIXED = RoutedEngine(engine="bokeh__aaaaaaaaaaaa", digest="sha256:" + "a" * 64, precision="Mixed")
FP32 = RoutedEngine(engine="bokeh__ffffffffffff", digest="sha256:" + "f" * 64, precision="FP32")


@pytest.mark.parametrize(
    ("primary", "serving", "answering", "role"),
    [
        pytest.param(MIXED, "Primary", MIXED, "Primary", id="the primary that is served"),
        pytest.param(MIXED, "Primary", FP32, "Fallback", id="the standby that answers for a withheld matte"),
        pytest.param(MIXED, "Fallback", FP32, "Fallback", id="the fallback after a swap"),
        pytest.param(MIXED, "Fallback", MIXED, "Primary", id="a primary asked while the fallback is served"),
        pytest.param(FP32, "Primary", FP32, "Primary", id="an FP32 primary that is also the standby"),
    ],
)
def test_the_role_of_an_answer(
    primary: RoutedEngine, serving: Literal["Primary", "Fallback"], answering: RoutedEngine, role: str
) -> None:
    route = Route(alias="bokeh", epoch=3, serving=serving, primary=primary, fallback=FP32)
    assert Snapshot(route=route, simulated=True, contract_hash="").role(answering) == role
