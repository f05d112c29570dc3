"""One handler a kind: every change of every watched object wakes the loop.

NodeEngines are followed by the store itself (ADR 8): a fleet writes thousands of them at once.
"""

from __future__ import annotations

from typing import Any

import kopf

from blurfleet.api.base import GROUP, VERSION


@kopf.on.event(GROUP, VERSION, "enginerollouts", id="rollout-changed")
async def rollout_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of an EngineRollout."""
    memo.loop.saw("EngineRollout", event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "enginesets", id="engine-set-changed")
async def engine_set_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of an EngineSet."""
    memo.loop.saw("EngineSet", event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "qualitypolicies", id="policy-changed")
async def policy_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of a QualityPolicy."""
    memo.loop.saw("QualityPolicy", event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "preprocesscontracts", id="contract-changed")
async def contract_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of a PreprocessContract."""
    memo.loop.saw("PreprocessContract", event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "qualityruns", id="quality-run-changed")
async def quality_run_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of a QualityRun."""
    memo.loop.saw("QualityRun", event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "enginequarantines", id="quarantine-changed")
async def quarantine_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of an EngineQuarantine."""
    memo.loop.saw("EngineQuarantine", event["type"], event["object"])


@kopf.on.event("", "v1", "nodes", id="node-changed")
async def node_changed(event: Any, memo: Any, **_: Any) -> None:
    """Take a change of a Node."""
    memo.loop.saw("Node", event["type"], event["object"])
