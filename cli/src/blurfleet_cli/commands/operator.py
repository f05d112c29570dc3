"""`blurfleet operator`: the rollout operator on a Kubernetes API server, as one process."""

from __future__ import annotations

import signal
import sys
import threading

import click
import structlog
from pydantic import ValidationError

from blurfleet.api.kinds import invalid
from blurfleet.logs import log_json, log_libraries

_GRACE_S = 30.0


@click.command()
def operator() -> None:
    """Run the operator until SIGTERM. Settings: BLURFLEET_KUBECONFIG (or KUBECONFIG), _NAMESPACE, _HEALTH_ADDRESS, ...

    Without a kubeconfig it acts as its pod's account. Exit code 1 if it ends by itself.

    Example: BLURFLEET_KUBECONFIG=out/cluster/kubeconfig blurfleet operator
    """
    from blurfleet_operator.main import run
    from blurfleet_operator.settings import OperatorSettings

    try:
        settings = OperatorSettings()
    except ValidationError as error:
        raise invalid(error, "settings (BLURFLEET_ variables)") from error
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
