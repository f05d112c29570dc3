"""QualityRun: one verdict with the summary of its evidence, written once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from blurfleet.api.base import Duration, Model
from blurfleet.api.nodeengine import Figure


class QualityRunSpec(Model):
    """Who was judged, where, on what, with which outcome."""

    rollout: str = ""
    node: str
    device_class: str
    model: str
    engine_set: str = ""
    digest: str
    attempt: str = ""
    stage: Literal["Golden", "Shadow", "Live"]
    verdict: Literal["Pass", "Fail", "Inconclusive"]
    reason: str
    figures: tuple[Figure, ...] = Field(default=(), max_length=32)
    oracle_passed: bool | None = Field(default=None, description="at stage Golden: the same node's FP32 engine")
    samples_valid: int = 0
    samples_required: int = 0
    evidence: str = ""
    at: str = ""
    ttl: Duration = "168h"


class QualityRunStatus(Model):
    """Nothing is observed about a verdict; the subresource exists so that roles can split."""

    observed_generation: int = 0
