"""What the chart makes of the clients' door: both protocols, its secrets, its limits, and that an open one is said."""

from __future__ import annotations

from typing import Any

import pytest
from helm_python import Chart, HelmError
from tests.charts.rendering import CHART, named, of, pods, render

from blurfleet_preprocess.settings import GatewaySettings

GUARDED: dict[str, Any] = {
    "gateway": {
        "tlsSecret": "door-tls",
        "tokensSecret": "door-clients",
        "open": False,
        "limits": {"rate": 30.5, "burst": 60, "atOnce": 4},
    }
}


def gateway_of(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return the pod, the gateway's container and its environment."""
    pod = dict(pods(render(values)))["blurfleet-agent-a100"]
    [container] = [c for c in pod["containers"] if c["name"] == "gateway"]
    return pod, container, {e["name"]: e.get("value", "") for e in container["env"]}


def test_as_shipped_the_door_is_open_on_both_protocols_to_its_own_namespace() -> None:
    assert let_in({}) == [{"podSelector": {}}]
    _, container, environment = gateway_of({})
    assert environment["BLURFLEET_OPEN_DOOR"] == "true"
    assert environment["BLURFLEET_GATEWAY_GRPC_PORT"] == "8091"
    assert environment["BLURFLEET_CLIENT_RATE"] == "0"
    assert not [name for name in environment if "TLS" in name or "TOKENS" in name]
    assert [(p["name"], p["containerPort"]) for p in container["ports"]] == [("http", 8090), ("grpc", 8091)]
    assert {container[p]["httpGet"]["scheme"] for p in ("readinessProbe", "livenessProbe")} == {"HTTP"}


def let_in(values: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return who may reach the clients' ports, None where that is everybody."""
    rules = named(render(values), "NetworkPolicy", "blurfleet-gateway")["spec"]["ingress"]
    [door] = [r for r in rules if {"port": "http"} in r["ports"]]
    assert {"port": "grpc"} in door["ports"]
    found: list[dict[str, Any]] | None = door.get("from")
    return found


def test_others_come_in_when_they_are_named_and_everybody_when_nobody_is() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert let_in({"gateway": {"allowFrom": [prometheus]}}) == [prometheus]
    assert let_in({"gateway": {"allowFrom": []}}) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({}, ["door is open", "Pods of blurfleet-system alone"], id="as shipped"),
        pytest.param({"gateway": {"allowFrom": []}}, ["door is open", "Everybody"], id="open to everybody"),
        pytest.param(
            {"gateway": {**GUARDED["gateway"], "allowFrom": [{"namespaceSelector": {}}]}}, [], id="guarded, and named"
        ),
    ],
)
def test_the_notes_say_who_may_ask(values: dict[str, Any], said: list[str]) -> None:
    parts = Chart.load(CHART).render(values, name="blurfleet", namespace="blurfleet-system")
    notes = parts["blurfleet/templates/NOTES.txt"]
    assert [
        words for words in ("door is open", "Pods of blurfleet-system alone", "Everybody") if words in notes
    ] == said
    assert "\n\nUninstalling leaves" in notes


def test_the_gateway_that_is_rendered_reads_a_proxys_names_and_the_bounds_of_streams() -> None:
    streams = {"atOnce": 8, "frameBytes": 20000000, "idleSeconds": 12.5, "sendSeconds": 3}
    for values, names, expected in (
        ({}, "", (32, 8 << 20, 30.0, 10.0)),
        (
            {"gateway": {"hostNames": ["video.example.org", "b"], "streams": streams}},
            "video.example.org,b",
            (8, 20000000, 12.5, 3.0),
        ),
    ):
        environment = gateway_of(values)[2]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            read = GatewaySettings()
        assert read.host_names == names
        assert (read.streams, read.stream_frame_bytes, read.stream_idle_s, read.stream_send_s) == expected


def test_a_name_that_is_no_host_is_refused_by_the_schema() -> None:
    with pytest.raises(HelmError, match="hostNames"):
        render({"gateway": {"hostNames": ["https://video.example.org/"]}})


def test_with_both_secrets_the_gateway_reads_them_and_does_not_start_without() -> None:
    pod, container, environment = gateway_of(GUARDED)
    assert environment["BLURFLEET_OPEN_DOOR"] == "false"
    assert environment["BLURFLEET_TLS_CERT_FILE"] == "/secrets/tls/tls.crt"
    assert environment["BLURFLEET_TLS_KEY_FILE"] == "/secrets/tls/tls.key"
    assert environment["BLURFLEET_TOKENS_FILE"] == "/secrets/tokens/tokens"
    assert (environment["BLURFLEET_CLIENT_RATE"], environment["BLURFLEET_CLIENT_BURST"]) == ("30.5", "60")
    assert environment["BLURFLEET_CLIENT_AT_ONCE"] == "4"
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"] if m["name"] in ("tls", "tokens")}
    assert mounted == {"tls": "/secrets/tls", "tokens": "/secrets/tokens"}
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    assert (secrets["tls"], secrets["tokens"]) == ("door-tls", "door-clients")
    assert {container[p]["httpGet"]["scheme"] for p in ("readinessProbe", "livenessProbe")} == {"HTTPS"}
    [agent] = [c for c in pod["containers"] if c["name"] == "agent"]
    assert not [m for m in agent["volumeMounts"] if m["name"] in ("tls", "tokens")]


@pytest.mark.parametrize(("values", "http"), [({}, 80), (GUARDED, 443)], ids=["plain", "encrypted"])
def test_the_service_has_a_port_for_each_protocol(values: dict[str, Any], http: int) -> None:
    [door] = [s for s in of("Service", render(values)) if s["metadata"]["name"] == "blurfleet"]
    assert [(p["name"], p["port"]) for p in door["spec"]["ports"]] == [("http", http), ("grpc", 8091)]


def test_a_guarded_gateways_figures_are_scraped_over_tls() -> None:
    monitored = {"monitoring": {"podMonitor": True}}
    for values, scheme in ((monitored, None), (monitored | GUARDED, "https")):
        endpoints = [e for m in of("PodMonitor", render(values)) for e in m["spec"]["podMetricsEndpoints"]]
        assert {e.get("scheme") for e in endpoints if e["port"] == "http"} == {scheme}
