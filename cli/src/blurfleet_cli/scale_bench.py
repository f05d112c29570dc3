"""How the operator grows: simulated nodes on a real API server, the real operator as its own process."""

from __future__ import annotations

import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from blurfleet.answers import spread_s
from blurfleet.api.base import seconds
from blurfleet.api.nodeengine import NodeEngineStatus
from blurfleet.api.rollout import RolloutStatus
from blurfleet.deadline import came_true
from blurfleet.errors import BlurfleetError, EngineTimeout
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.port import Ref
from blurfleet_cli.cluster.changes import Changes
from blurfleet_cli.cluster.ground import install, require_checkout
from blurfleet_cli.cluster.identities import NAMESPACE, OPERATOR, ensure_node, service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane
from blurfleet_cli.ports import free_ports
from blurfleet_cli.simulated_nodes import Script, report

_THREADS = 8
_BEATERS = 4
_LEASE_S = 30.0
_POLL_S = 0.02
_PATIENCE_S, _PATIENCE_A_NODE_S = 300.0, 0.3  # a promotion is about eight requests a node
_TURN_S = 0.05
_QUIET_S = 3.0
_QUIET_REQUESTS = 12.0
_CLASS = "a100"
_NODES = "simulated-nodes"
_FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
_ROLLOUT = Ref(kind="EngineRollout", name="bokeh", namespace="default")
Tell = Callable[[str], None]


class SimulatedNodes:
    """All nodes' status writers in one process: they answer every change of a spec, and renew Leases at rest."""

    def __init__(self, access: Access) -> None:
        self.script = Script()
        client = KubeClient(access, connections=2 * _THREADS)
        self.store = KubeStore(client, manager="blurfleet-agent")
        self.store.feed("NodeEngine")
        self.store.relist("NodeEngine")
        self.reporting: set[str] = set()
        self._known: dict[str, str] = {}
        self._stop = threading.Event()
        self._work: queue.PriorityQueue[tuple[float, str]] = queue.PriorityQueue()
        self._threads = [threading.Thread(target=self._write, daemon=True) for _ in range(_THREADS)]
        self._threads += [threading.Thread(target=self._beat, daemon=True)]
        self._changes = Changes(client, "NodeEngine", self._saw)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._changes.close()
        for thread in self._threads:
            thread.join(5.0)
        self.store.close()

    def trip(self, names: Iterable[str], digest: str) -> float:
        """Let nodes trip on `digest` one after another; returns when the last of them was written (monotonic)."""
        for name in names:
            found = self.store.get(Ref(kind="NodeEngine", name=name))
            assert found is not None
            status = report(found, _CLASS, Script(trips={digest}), time.time())
            self.store.write_status(Ref(kind="NodeEngine", name=name), status)
        return time.monotonic()

    def _saw(self, change: str, body: Mapping[str, Any]) -> None:
        name, generation = body["metadata"]["name"], str(body["metadata"].get("generation"))
        self.store.offer("NodeEngine", change, body)
        if body.get("status", {}).get("facts"):
            self.reporting.add(name)
        # Only a new spec is news to an agent; its own status is not.
        if self._known.get(name) != generation:
            self._known[name] = generation
            after = seconds(body["spec"].get("answerAfter") or "0s")
            self._work.put((time.monotonic() + random.uniform(after, 2 * after), name))

    def _write(self) -> None:
        while not self._stop.is_set():
            try:
                due, name = self._work.get(timeout=_TURN_S)
            except queue.Empty:
                continue
            if (early := due - time.monotonic()) > 0:
                self._work.put((due, name))
                self._stop.wait(min(early, _TURN_S))
                continue
            ref = Ref(kind="NodeEngine", name=name)
            try:
                found = self.store.get(ref)
                if found is None:
                    continue
                status = report(found, _CLASS, self.script, time.time())
                if status != found.status:
                    self.store.write_status(ref, status)
            except BlurfleetError:
                self._work.put((time.monotonic() + _TURN_S, name))

    def _beat(self) -> None:
        due: dict[str, float] = {}
        with ThreadPoolExecutor(_BEATERS) as pool:
            while not self._stop.wait(0.2):
                now = time.time()
                late = [name for name in list(self._known) if now >= due.get(name, 0.0)]
                for name, beaten in zip(late, pool.map(self._beaten, late), strict=True):
                    # Spread from the first beat on, as nodes that start at different times are.
                    spread = 1.0 if name in due else (hash(name) % 1000) / 1000
                    due[name] = now + (_LEASE_S * spread if beaten else 1.0)

    def _beaten(self, name: str) -> bool:
        if self._stop.is_set():
            return False
        try:
            self.store.beat(name, NAMESPACE, time.time(), every_s=_LEASE_S)
        except BlurfleetError:
            return False
        return True


class Bench:
    """One control plane, one operator and `count` simulated nodes."""

    def __init__(
        self, plane: ControlPlane, operator: psutil.Process, nodes: SimulatedNodes, count: int, tell: Tell
    ) -> None:
        self.plane, self.operator, self.nodes, self.count, self.tell = plane, operator, nodes, count, tell
        self.api = plane.admin()
        self.names = [f"node-{i:05d}" for i in range(count)]

    def run(self) -> dict[str, Any]:
        """Return the figures."""
        self.nodes.start()
        try:
            registered = self._register()
            self._promote("good", "fp32")
            spread = self._promote("bad", "mixed")
            self._settle()
            reverted = self._revert()
            rest = self._rest()
            hasty = self._revert_midway()
            memory = self.operator.memory_info().rss / 2**20
            return {
                "nodes": self.count,
                **registered,
                **spread,
                **reverted,
                **rest,
                **hasty,
                "operator_rss_mib": round(memory, 1),
            }
        finally:
            self.nodes.close()
            self.api.close()

    def _register(self) -> dict[str, float]:
        self.tell(f"{self.count} nodes join")
        labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda n: ensure_node(self.api, n, labels), self.names[:-1]))
        began = time.monotonic()
        ensure_node(self.api, self.names[-1], labels)
        self._until(lambda: len(self.nodes.reporting) == self.count, "registered")
        return {"last_node_registered_s": round(time.monotonic() - began, 2)}

    def _promote(self, name: str, primary: str) -> dict[str, float]:
        self.tell(f"set {name} goes to {self.count} nodes")
        for body in _objects(name, primary):
            self.api.apply(body)
        began = time.monotonic()
        self._until(lambda: (self._status().phase, self._status().set) == ("Promoted", name), f"{name} promoted")
        return {"set_promoted_s": round(time.monotonic() - began, 2)}

    def _status(self) -> RolloutStatus:
        found = self.nodes.store.get(_ROLLOUT)
        assert found is not None
        assert isinstance(found.status, RolloutStatus)
        return found.status

    def _revert(self) -> dict[str, float]:
        self.tell("two nodes trip")
        bad, good = _digest("mixed"), _digest("fp32")
        arrived = _Arrivals(Access(kubeconfig=self.plane.kubeconfig), good)
        before = _used(self.operator)
        at = self.nodes.trip(self.names[:2], bad)
        self._until(lambda: bad in arrived.quarantined and arrived.reverted(self.count), "the class reverted")
        spent = {name: used - before[name] for name, used in _used(self.operator).items()}
        arrived.close()
        return {
            "revert_decided_s": round(arrived.quarantined[bad] - at, 3),
            "last_spec_reverted_s": round(arrived.last_at - at, 3),
            **{f"{name}_cpu_ms_per_node": round(1000 * used / self.count, 2) for name, used in spent.items()},
        }

    def _revert_midway(self) -> dict[str, float]:
        """Trip two of the first nodes that serve a new set while the others are still told of it."""
        self.tell(f"set worse goes to {self.count} nodes, and two trip on the way")
        for body in _objects("worse", "worse"):
            self.api.apply(body)
        digest = _digest("worse")
        self._until(lambda: len(self._serving(digest)) >= 2, "served by two")
        arrived = _Arrivals(Access(kubeconfig=self.plane.kubeconfig), "")
        at = self.nodes.trip(self._serving(digest)[:2], digest)
        self._until(lambda: digest in arrived.quarantined, "quarantined midway")
        serving = len(self._serving(digest, self.names))
        arrived.close()
        return {
            "midway_decided_s": round(arrived.quarantined[digest] - at, 3),
            "midway_share_serving": round(serving / self.count, 3),
        }

    def _serving(self, digest: str, names: Sequence[str] = ()) -> list[str]:
        """Return which of `names`, else of the first hundred, report that they serve `digest`."""
        found = {n: self.nodes.store.get(Ref(kind="NodeEngine", name=n)) for n in names or self.names[:100]}
        statuses = {n: r.status for n, r in found.items() if r is not None and isinstance(r.status, NodeEngineStatus)}
        return [
            name
            for name, status in statuses.items()
            if any(m.serving is not None and m.serving.digest == digest for m in status.models)
        ]

    def _rest(self, seconds: float = 30.0) -> dict[str, float]:
        self._settle()
        self.tell(f"{seconds:.0f} s at rest")
        before, cpu = _requests(self.api), self.operator.cpu_times()
        began = time.monotonic()
        time.sleep(seconds)  # the rest that is measured
        took = time.monotonic() - began
        after, now = _requests(self.api), self.operator.cpu_times()
        by_kind = {k: after[k] - before.get(k, 0.0) for k in after if after[k] > before.get(k, 0.0)}
        scale = 60.0 / took / self.count
        return {
            "requests_per_node_minute": round(sum(by_kind.values()) * scale, 3),
            "lease_requests_per_node_minute": round(
                sum(v for (_, what), v in by_kind.items() if what == "leases") * scale, 3
            ),
            "operator_cpu_share_at_rest": round((now.user + now.system - cpu.user - cpu.system) / took, 3),
        }

    def _settle(self) -> None:
        """Wait until only Leases are written: what the promotion left to be written is not rest."""
        self.tell("waiting for rest")
        last: float = -1.0
        # Between the orders to a large class and its answers nothing is written either, and that is no rest.
        stretch = _QUIET_S + 2 * spread_s(self.count, 0.0)

        def quiet() -> bool:
            nonlocal last
            time.sleep(stretch)  # in which nothing may be written
            before = last
            last = sum(v for (_, what), v in _requests(self.api).items() if what != "leases")
            return last - before <= _QUIET_REQUESTS * stretch / _QUIET_S

        self._until(quiet, "at rest")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        within_s = _PATIENCE_S + _PATIENCE_A_NODE_S * self.count
        if not came_true(holds, within_s, poll_s=_POLL_S):
            raise EngineTimeout(Reason.CHECK_FAILED, f"not {what} within {within_s:.0f} s", where=self.plane.url)


class _Arrivals:
    """When quarantines, by digest, and each reverted spec arrived on a watch of its own (monotonic seconds)."""

    def __init__(self, access: Access, good: str) -> None:
        self.good = good
        self.quarantined: dict[str, float] = {}
        self.last_at = 0.0
        self._done: set[str] = set()
        self._client = KubeClient(access)
        self._watches = [Changes(self._client, k, self._take) for k in ("NodeEngine", "EngineQuarantine")]
        for watch in self._watches:
            watch.listed.wait(60.0)

    def reverted(self, count: int) -> bool:
        return len(self._done) == count

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._client.close()

    def _take(self, _: str, body: Mapping[str, Any]) -> None:
        name = body["metadata"]["name"]
        if body["kind"] == "EngineQuarantine":
            self.quarantined.setdefault(body["spec"]["digest"], time.monotonic())
            return
        models = body["spec"].get("models") or [{}]
        if models[0].get("primary", {}).get("digest") == self.good and name not in self._done:
            self._done.add(name)
            self.last_at = time.monotonic()


def _used(operator: psutil.Process) -> dict[str, float]:
    """Return processor seconds so far of who shares the machine: what bounds a revert is what uses it up."""
    mine = psutil.Process()
    others = {p.name(): p for p in mine.children(recursive=True)}
    names = {"server": "kube-apiserver", "etcd": "etcd", "controllers": "kube-controller-manager"}
    parts = {"operator": operator, "simulation": mine} | {part: others[name] for part, name in names.items()}
    return {name: sum(p.cpu_times()[:2]) for name, p in parts.items()}


def _requests(api: KubeApi) -> dict[tuple[str, str], float]:
    """Return how many requests the API server answered, by verb and resource; watches and our own reading left out."""
    found: dict[tuple[str, str], float] = {}
    for line in str(api.call("GET", "/metrics")).splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        verb, what = (_label(line, n) for n in ("verb", "resource"))
        if verb == "WATCH" or not what:
            continue
        found[verb, what] = found.get((verb, what), 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def _label(line: str, name: str) -> str:
    match = re.search(rf'[{{,]{name}="([^"]*)"', line)
    return match.group(1) if match else ""


def _account(api: KubeApi) -> str:
    """Return the token of one account that speaks for all nodes: an agent's names one node, and the policy holds it.

    Its status writes share the agents' flow, so that the server queues them as it would queue a fleet's.
    """
    flow = api.call("GET", f"{_FLOWS}/blurfleet-agents")
    flow["metadata"] = {"name": _NODES}
    flow["spec"]["rules"][0]["subjects"][0]["serviceAccount"]["name"] = _NODES
    flow["spec"]["matchingPrecedence"] += 1
    rbac = "rbac.authorization.k8s.io"
    bodies = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _NODES, "namespace": NAMESPACE}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NODES},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": _NODES, "namespace": NAMESPACE}],
        },
        flow,
    ]
    for body in bodies:
        api.create(body)
    return service_account_token(api, NAMESPACE, _NODES)


def _digest(text: str) -> str:
    return digest_bytes(f"scale/{text}".encode())


def _objects(name: str, primary: str) -> list[dict[str, Any]]:
    """Return contract, policy, a set whose best engine is `primary`, and the rollout of it, from the examples.

    `primary` is fp32, or names the bytes of a mixed engine.
    """
    found: dict[str, Any] = {}
    for path in sorted(Path("examples").glob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            found.setdefault(body["kind"], body)
            body["metadata"]["namespace"] = "default"
    engines, rollout = found["EngineSet"], found["EngineRollout"]
    engines["metadata"]["name"] = name
    engines["spec"]["contractRef"] = found["PreprocessContract"]["metadata"]["name"]
    kept = [v for v in engines["spec"]["variants"] if v["target"]["class"] == _CLASS]
    for v in kept:
        v["artifact"]["digest"] = _digest("fp32" if v["precision"] == "FP32" else primary)
    engines["spec"]["variants"] = [v for v in kept if primary != "fp32" or v["precision"] == "FP32"]
    rollout["metadata"]["name"] = _ROLLOUT.name
    rollout["spec"] |= {
        "engineSet": name,
        "policyRef": found["QualityPolicy"]["metadata"]["name"],
        "selector": {"classes": [_CLASS]},
        "waves": [{"name": "all", "percent": 100}],
        "correlation": {"nodes": 2, "window": "10m"},
    }
    return [found["PreprocessContract"], found["QualityPolicy"], engines, rollout]


@contextmanager
def _operator(plane: ControlPlane, folder: Path) -> Iterator[psutil.Process]:
    api = plane.admin()
    token = service_account_token(api, NAMESPACE, OPERATOR)
    api.close()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BLURFLEET_", "KUBECONFIG"))}
    env |= {
        "BLURFLEET_KUBECONFIG": str(plane.write_kubeconfig(folder / "operator.kubeconfig", token)),
        "BLURFLEET_HEALTH_ADDRESS": f"127.0.0.1:{free_ports(1)[0]}",
        "BLURFLEET_METRICS_PORT": "0",
    }
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "blurfleet_cli", "operator"], env=env, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def run(counts: tuple[int, ...], tell: Tell) -> list[dict[str, Any]]:
    """Measure each fleet size on a fresh control plane; returns one flat report each. Raises BlurfleetError.

    Times are in seconds as seen on a watch; `load_average` says how quiet the machine was before.
    """
    require_checkout()
    reports = []
    for count in counts:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="blurfleet-scale-") as folder:
            root = Path(folder)
            with ControlPlane(root / "plane", tell=tell) as plane:
                api = plane.admin()
                install(api, tell=tell)
                told = Access(kubeconfig=plane.write_kubeconfig(root / "nodes.kubeconfig", _account(api)))
                api.close()
                with _operator(plane, root) as operator:
                    measured = Bench(plane, operator, SimulatedNodes(told), count, tell).run()
        reports.append({**measured, "cpus": os.cpu_count(), "load_average": round(load, 2)})
    return reports
