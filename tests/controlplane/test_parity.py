"""A folder of YAML and a cluster refuse the same objects: random specs against the models and the API server."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blurfleet.api.base import API_VERSION
from blurfleet.api.kinds import parse_resource
from blurfleet.api.policy import MetricName
from blurfleet.errors import AdmissionRefused, InvalidSpec
from blurfleet_cli.cluster.kubeapi import KubeApi

AGREE = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
DURATIONS = st.sampled_from(["250ms", "2m", "1h30m", "0s", "", "2 m", "m2", "1m1h", "-1s", "1.5s"])
FRACTIONS = st.sampled_from(["0.0035", "0", "18", "1.", ".5", "1e-3", "-1", "NaN", ""])
DECIMALS = st.sampled_from(["0.485", "-1", "0", "2.5e-1", "x", "", "NaN", "1,5"])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Each field there or not."""
    return st.fixed_dictionaries({}, optional=fields)


WAVE = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c", "C", ""])},
    optional={
        "percent": st.integers(min_value=-1, max_value=102),
        "nodes": st.lists(st.sampled_from(["n1", "n2"]), max_size=2),
        "soak": DURATIONS,
    },
)
RULE = st.fixed_dictionaries(
    {"metric": st.sampled_from([m.value for m in MetricName]), "source": st.sampled_from(["Golden", "Live"])},
    optional={
        "limit": FRACTIONS,
        "trip": some(
            frames=st.integers(min_value=0, max_value=4),
            window=st.integers(min_value=0, max_value=4),
            **{"for": DURATIONS},
            maxGap=DURATIONS,
        ),
    },
)
AXIS = st.fixed_dictionaries(
    {name: st.sampled_from([0, 32, 48, 64]) for name in ("min", "opt", "max")},
    optional={"multipleOf": st.sampled_from([0, 1, 16, 32])},
)


def agree(api: KubeApi, kind: str, spec: dict[str, Any]) -> None:
    body = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": "parity", "namespace": "default"},
        "spec": spec,
    }
    try:
        parse_resource(body)
        by_model = ""
    except InvalidSpec as refusal:
        by_model = refusal.message
    try:
        api.create(body, dry_run=True)
        by_server = ""
    except AdmissionRefused as refusal:
        by_server = refusal.message
    assert bool(by_model) == bool(by_server), (
        f"{spec}\nmodel: {by_model or 'accepts'}\nserver: {by_server or 'accepts'}"
    )


@AGREE
@given(waves=st.lists(WAVE, max_size=4))
def test_waves(api: KubeApi, waves: list[dict[str, Any]]) -> None:
    agree(api, "EngineRollout", {"model": "bokeh", "engineSet": "s", "policyRef": "p", "waves": waves})


@AGREE
@given(rule=RULE)
def test_quality_rules(api: KubeApi, rule: dict[str, Any]) -> None:
    agree(api, "QualityPolicy", {"metrics": [rule]})


@AGREE
@given(
    spec=some(
        height=AXIS,
        width=AXIS,
        scale=DECIMALS,
        mean=st.lists(DECIMALS, min_size=3, max_size=3),
        std=st.lists(DECIMALS, min_size=2, max_size=4),
        background=st.lists(st.sampled_from([-1, 0, 255, 256]), min_size=3, max_size=3),
    )
)
def test_contracts(api: KubeApi, spec: dict[str, Any]) -> None:
    agree(api, "PreprocessContract", spec)
