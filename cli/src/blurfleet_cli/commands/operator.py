"""`blurfleet operator`: the rollout operator on a Kubernetes API server, as one process."""

from __future__ import annotations

import signal
import sys
import threading

import click
import structlog

from blurfleet.logs import log_json, log_libraries
from blurfleet_cli.main import require
from blurfleet_cli.ports import require_free
from blurfleet_cli.process_settings import settings_of

_GRACE_S = 30.0


@click.command()
def operator() -> None:
    """Run the operator until SIGTERM. Settings: BLURFLEET_KUBECONFIG (or KUBECONFIG), _NAMESPACE, _HEALTH_ADDRESS, ...

    Without a kubeconfig it acts as its pod's account. Exit code 1 if it cannot start, or ends by itself.

    Example: BLURFLEET_KUBECONFIG=out/cluster/kubeconfig blurfleet operator
    """
    from blurfleet.store.kubeclient import Access, KubeClient
    from blurfleet_operator.main import run
    from blurfleet_operator.settings import OperatorSettings

    settings = settings_of(OperatorSettings, "operator")
    # What ends every start is said here in one line: kopf would try it again each minute, or act without its health.
    KubeClient(Access(kubeconfig=settings.kubeconfig)).close()
    require_free(settings.metrics_host, settings.metrics_port, "BLURFLEET_METRICS_PORT")
    if settings.health_address:
        host, _, port = settings.health_address.rpartition(":")
        require(port.isdecimal(), f"BLURFLEET_HEALTH_ADDRESS is {settings.health_address!r}, not HOST:PORT")
        require_free(host.strip("[]"), int(port), "BLURFLEET_HEALTH_ADDRESS")
    log_json(service="operator")
    log_libraries()
    stop, ended = threading.Event(), threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    failed: list[BaseException] = []

    def turn() -> None:
        try:
            run(settings, stop=stop)
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()
            stop.set()

    thread = threading.Thread(target=turn, name="kopf", daemon=True)
    thread.start()
    stop.wait()
    asked = not ended.is_set()
    ended.wait(_GRACE_S)
    for cause in failed:
        structlog.get_logger("blurfleet.operator").error("the operator ended", error=f"{type(cause).__name__}: {cause}")
    sys.exit(0 if asked and not failed else 1)
