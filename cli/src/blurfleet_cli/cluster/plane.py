"""One control plane on loopback: etcd, kube-apiserver and kube-controller-manager in one folder."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from blurfleet.api.base import Model
from blurfleet.deadline import came_true
from blurfleet.errors import NodeError, StoreError
from blurfleet.reasons import Reason
from blurfleet.store.atomic import write_atomic
from blurfleet_cli.cluster import identities, processes
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.programs import APISERVER, CONTROLLERS, STORAGE, Programs, ensure_programs
from blurfleet_cli.ports import free_ports

_READY_S = 120.0
_POLL_S = 0.1
# The server drains watches for up to a minute on SIGTERM; nothing here is worth waiting for that.
_GRACE_S = {CONTROLLERS: 2.0, APISERVER: 3.0, STORAGE: 3.0}
# No node has a kubelet, so what judges nodes and clears pods of silent ones stays off: it would end agents' tokens.
_LOOPS = (
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
)

# A small heap is collected so often that a quarter of the server's time went there; memory is not what is short here.
_ENVIRONMENT = {APISERVER: {"GOGC": "400"}}

# Who asked for what and whether it was allowed, not what was said; administrators and the plane itself are no matter.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class PlaneFile(Model):
    """What `start` chose, so that another process can find and restart it."""

    schema_version: Literal[1] = 1
    storage_port: int
    peer_port: int
    server_port: int
    controllers_port: int
    token: str


class ControlPlane:
    """A control plane in the folder `root`. Use as a context manager: started on entry, stopped and removed on exit.

    With `audit` what each ServiceAccount asks is kept, a line of JSON a request, in `audit_log`.
    """

    def __init__(self, root: Path, *, tell: Callable[[str], None] = lambda _: None, audit: bool = False) -> None:
        self.root = root.resolve()
        self._audit = audit
        self._tell = tell
        self._programs: Programs | None = None

    def __enter__(self) -> ControlPlane:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def authority(self) -> Path:
        """Return the certificate that clients trust."""
        return self.root / "certs/apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """Return where requests are kept."""
        return self.root / "logs/audit.jsonl"

    @property
    def plan(self) -> PlaneFile:
        """Return what `start` chose. Raises NodeError where none was started here."""
        path = self.root / "plane.json"
        try:
            return PlaneFile.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise NodeError(
                Reason.NOT_FOUND, "no control plane was started here", where=str(path), fix="run `make cluster-up`"
            ) from error

    @property
    def url(self) -> str:
        """Return the API server's address."""
        return f"https://127.0.0.1:{self.plan.server_port}"

    def admin(self) -> KubeApi:
        """Return a client that may do everything."""
        return self.client(self.plan.token)

    def client(self, token: str) -> KubeApi:
        """Return a client that acts as the bearer of `token`."""
        return KubeApi(self.url, token, self.authority)

    def start(self) -> ControlPlane:
        """Start what does not run yet and return once the API server is ready. Raises NodeError after two minutes."""
        self._programs = ensure_programs(self._tell)
        self._prepare()
        for name in (STORAGE, APISERVER):
            self._launch(name)
        self._wait_ready()
        self.write_kubeconfig(self.kubeconfig, self.plan.token)
        self._launch(CONTROLLERS)
        return self

    def stop(self) -> bool:
        """Stop all processes and remove the folder. False where nothing ran."""
        ran = [processes.stop(self._pid(name), grace_s=_GRACE_S[name]) for name in (CONTROLLERS, APISERVER, STORAGE)]
        shutil.rmtree(self.root, ignore_errors=True)
        return any(ran)

    def kill_apiserver(self) -> None:
        """End the API server at once, as a lost machine would; storage keeps what was written."""
        processes.stop(self._pid(APISERVER), grace_s=0)

    def start_apiserver(self) -> None:
        """Start the API server on its old port and return once it is ready. Raises NodeError."""
        self._launch(APISERVER)
        self._wait_ready()

    def running(self) -> dict[str, bool]:
        """Return which of the three processes run."""
        return {name: processes.alive(self._pid(name)) for name in (STORAGE, APISERVER, CONTROLLERS)}

    def service_account_token(self, namespace: str, name: str) -> str:
        """Return a token of a ServiceAccount, good for an hour. Raises StoreError."""
        with contextlib.closing(self.admin()) as api:
            return identities.service_account_token(api, namespace, name)

    def node_token(self, node: str) -> str:
        """Return the token of the agent on `node`, bound to its pod; makes Node and Pod. Raises StoreError."""
        with contextlib.closing(self.admin()) as api:
            return identities.node_token(api, node)

    def _pid(self, name: str) -> Path:
        return self.root / f"{name}.pid"

    def _prepare(self) -> None:
        for folder in ("", "logs", "certs"):
            (self.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self.root / "plane.json").is_file():
            return
        ports = free_ports(4)
        plan = PlaneFile(
            storage_port=ports[0],
            peer_port=ports[1],
            server_port=ports[2],
            controllers_port=ports[3],
            token=secrets.token_urlsafe(32),
        )
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.root / "sa.key"), "2048"], check=True, capture_output=True
        )
        write_atomic(self.root / "tokens.csv", f"{plan.token},admin,admin,system:masters\n".encode(), mode=0o600)
        write_atomic(self.root / "audit.yaml", yaml.safe_dump(_AUDIT).encode())
        write_atomic(self.root / "plane.json", json.dumps(plan.wire()).encode(), mode=0o600)

    def _launch(self, name: str) -> None:
        if processes.alive(self._pid(name)):
            return
        self._tell(f"starting {name}")
        log = self.root / f"logs/{name}.log"
        processes.start(self._command(name), pid_file=self._pid(name), log=log, env=_ENVIRONMENT.get(name, {}))

    def _command(self, name: str) -> list[str]:
        programs = self._programs or ensure_programs(self._tell)
        plan, storage = self.plan, f"http://127.0.0.1:{self.plan.storage_port}"
        peer = f"http://127.0.0.1:{plan.peer_port}"
        key = str(self.root / "sa.key")
        if name == STORAGE:
            return [
                str(programs.etcd),
                f"--data-dir={self.root / 'etcd'}",
                f"--listen-client-urls={storage}",
                f"--advertise-client-urls={storage}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ]
        if name == APISERVER:
            return [
                str(programs.apiserver),
                f"--etcd-servers={storage}",
                f"--cert-dir={self.root / 'certs'}",
                f"--secure-port={plan.server_port}",
                "--bind-address=127.0.0.1",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                f"--token-auth-file={self.root / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--allow-privileged=true",
                "--disable-admission-plugins=ServiceAccount",
                *self._auditing(),
            ]
        return [
            str(programs.controllers),
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(_LOOPS)}",
            f"--root-ca-file={self.authority}",
            "--bind-address=127.0.0.1",
            f"--secure-port={plan.controllers_port}",
            f"--cert-dir={self.root / 'certs'}",
            "--leader-elect=false",
        ]

    def _auditing(self) -> list[str]:
        if not self._audit:
            return []
        return [f"--audit-policy-file={self.root / 'audit.yaml'}", f"--audit-log-path={self.audit_log}"]

    def _wait_ready(self) -> None:
        if not came_true(self._ready, _READY_S, poll_s=_POLL_S):
            raise NodeError(Reason.SERVER_NOT_READY, f"not ready after {_READY_S:.0f} s", where=self.url)

    def _ready(self) -> bool:
        if not processes.alive(self._pid(APISERVER)) or not processes.alive(self._pid(STORAGE)):
            log = self.root / f"logs/{APISERVER}.log"
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            words = f"the control plane ended at its start: {last[0] if last else 'it said nothing'}"
            raise NodeError(Reason.SERVER_NOT_READY, words, where=str(log))
        if not self.authority.is_file():
            return False
        with contextlib.closing(self.admin()) as api, contextlib.suppress(StoreError):
            return bool(api.call("GET", "/readyz") == "ok")
        return False

    def write_kubeconfig(self, path: Path, token: str) -> Path:
        """Write a kubeconfig for the bearer of `token`, readable by its owner alone; return `path`. Raises OSError."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "blurfleet", "cluster": {"server": self.url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": "bearer", "user": {"token": token}}],
            "contexts": [{"name": "blurfleet", "context": {"cluster": "blurfleet", "user": "bearer"}}],
            "current-context": "blurfleet",
        }
        write_atomic(path, yaml.safe_dump(body).encode(), mode=0o600)
        return path
