"""What the real operator exports of real objects, scraped as Prometheus would."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import httpx
import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from prometheus_client.parser import text_string_to_metric_families
from scripted_nodes import ScriptedNode

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta
from blurfleet.api.quarantine import QuarantineSpec, QuarantineStatus
from blurfleet.deadline import came_true
from blurfleet.store.port import Ref

Scrape = Callable[[str], dict[tuple[str, ...], float]]


@pytest.fixture
def scrape(operator: OperatorProcess) -> Scrape:
    """Return what the operator exports under one name, by label values."""

    def ask(name: str) -> dict[tuple[str, ...], float]:
        pages: list[str] = []

        def answered() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                pages.append(httpx.get(f"http://{operator.metrics}/metrics", timeout=30.0, trust_env=False).text)
            return pages != []

        assert came_true(answered, 60.0), "no page of metrics"
        samples = (s for family in text_string_to_metric_families(pages[0]) for s in family.samples)
        return {tuple(v for _, v in sorted(s.labels.items())): s.value for s in samples if s.name == name}

    return ask


def test_nodes_rollouts_and_quarantines_are_exported_as_they_are(
    fleet: Fleet, scrape: Scrape, join: Callable[..., ScriptedNode]
) -> None:
    node = join("a0")
    fleet.until(lambda: fleet.node("a0") is not None, what="the node is registered")
    fleet.until(lambda: scrape("blurfleet_node_silent").get(("a100", node.name)) == 0.0, what="the node is heard")
    assert scrape("blurfleet_operator_acting") == {(): 1.0}
    own = fleet.space  # a class of devices that no other test quarantines
    spec = QuarantineSpec(digest=fleet.digest("recalled"), reason="Recalled", device_class=own)
    meta = ObjectMeta(name=f"metrics-{fleet.space}")
    fleet.store.apply(Resource(kind="EngineQuarantine", meta=meta, spec=spec, status=QuarantineStatus()))
    fleet.until(lambda: scrape("blurfleet_quarantines").get((own, "Recalled")) == 1.0, what="it is counted")
    made = scrape("blurfleet_quarantine_newest_timestamp_seconds")[(own, "Recalled")]
    assert abs(time.time() - made) < 120.0
    fleet.apply_examples(wave_soak="1s")
    key = ("bokeh", "Progressing", f"{fleet.space}/bokeh")
    fleet.until(
        lambda: any(k[::2] == key[::2] for k in scrape("blurfleet_rollout_phase")), what="the rollout's phase is there"
    )
    fleet.store.delete(Ref(kind="EngineQuarantine", name=meta.name))
