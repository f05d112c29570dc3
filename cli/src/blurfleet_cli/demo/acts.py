"""The six acts. Each makes its move, waits for what must follow, and promises only what it saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import yaml

from blurfleet.api.engineset import EngineSetSpec
from blurfleet.api.nodeengine import TripStatus
from blurfleet.api.qualityrun import QualityRunSpec
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.errors import AdmissionRefused
from blurfleet_cli.demo.evidence import evidence_pictures, replays
from blurfleet_cli.demo.power import cut_power
from blurfleet_cli.demo.stage import Act, Stage, candidate, reduced

CLASSES = ("a100", "jetson-orin")
ORINS = ("orin-0", "orin-1")
WAVES = [{"name": "canary", "percent": 50}, {"name": "fleet", "percent": 100}]
CALM_ANSWERS = 6


def baseline(stage: Stage) -> list[Act]:
    """FP32 goes live on all nodes; then the cameras start."""
    started = time.monotonic()
    spec = stage.apply_set("bokeh-fp32")
    stage.roll("bokeh-fp32", policy="standard", waves=WAVES)
    stage.wait(lambda: stage.rollout().phase == "Promoted", 120, "promotion of the FP32 baseline")
    for camera in stage.cameras.values():
        camera.start()
    stage.watch_answers(tuple(stage.cameras), CALM_ANSWERS)
    answers = stage.take()
    digest = reduced(spec, "a100").artifact.digest
    acts = []
    for device_class in CLASSES:
        act = Act(name="baseline", candidate=candidate(reduced(spec, device_class)), verdict="Pass", reason="Promoted")
        act.stage = "Live"
        nodes = {n.name for n in stage.nodes() if n.device_class == device_class}
        mine = [a for a in answers if a.node in nodes]
        served = {d for n, d in stage.serving().items() if n in nodes}
        act.promise("every node of the class serves the FP32 engine", served == {digest}, ", ".join(served))
        stage.close(act, mine, started=started)
        act.promise("no damaged frame was served", act.bad_frames_served == 0, f"worst error {act.worst_error:.2g}")
        acts.append(act)
    return acts


def naive_fp16(stage: Stage) -> list[Act]:
    """The whole graph in FP16 fails the golden gate on both classes; it is never served and stays refused."""
    started = time.monotonic()
    before = stage.serving()
    spec = stage.apply_set("bokeh-naive-fp16")
    stage.roll("bokeh-naive-fp16", policy="standard", waves=WAVES)
    stage.wait(
        lambda: set(_golden_failures(stage, spec)) == set(CLASSES),
        90,
        "golden failure of the naive FP16 engine on both classes",
    )
    stage.wait(lambda: stage.rollout().phase == "RolledBack", 30, "rollback of the naive FP16 rollout")
    failures, quarantined = _golden_failures(stage, spec), _quarantines(stage, spec)
    refusals = _refusals(stage)
    answers = stage.take()
    acts = []
    for device_class in CLASSES:
        variant = reduced(spec, device_class)
        act = Act(name="naive-fp16", candidate=candidate(variant), verdict="Fail", stage="Golden")
        seen = failures[device_class]
        act.reason = seen.reason
        figure = next((f for f in seen.figures if f.metric == "MaxAbsError"), None)
        act.value, act.limit = (figure.value, figure.limit) if figure else ("", "")
        act.frames_to_detect = figure.samples if figure else 0
        act.promise("the same node's oracle passed the same frames", seen.oracle_passed is True, seen.oracle_passed)
        act.promise(
            "its digest is quarantined for the class", device_class in quarantined, ", ".join(sorted(quarantined))
        )
        nodes = {n.name for n in stage.nodes() if n.device_class == device_class}
        mine = [a for a in answers if a.node in nodes]
        served = any(a.digest == variant.artifact.digest for a in mine)
        act.promise("it never answered a request", not served)
        act.promise("what was served before is served still", stage.serving() == before)
        for sentence, message in refusals.items():
            act.promise(sentence, variant.artifact.digest[:19] in message, message)
        act.pictures = evidence_pictures(stage, seen.evidence, f"naive-fp16-{device_class}")
        act.promise("replaying its evidence gives the same verdict", replays(stage, seen.evidence))
        stage.close(act, mine, started=started)
        act.promise("no damaged frame was served", act.bad_frames_served == 0)
        acts.append(act)
    return acts


def _golden_failures(stage: Stage, spec: EngineSetSpec) -> dict[str, QualityRunSpec]:
    """Return class -> the verdict that its reduced engine failed the golden gate, as the operator wrote it."""
    digests = {v.artifact.digest for v in spec.variants if v.precision != "FP32"}
    runs = [r.spec for r in stage.fleet.store.objects("QualityRun") if isinstance(r.spec, QualityRunSpec)]
    failed = [r for r in runs if (r.stage, r.verdict) == ("Golden", "Fail") and r.digest in digests]
    return {r.device_class: r for r in failed}


def _quarantines(stage: Stage, spec: EngineSetSpec) -> set[str]:
    digests = {v.artifact.digest for v in spec.variants if v.precision != "FP32"}
    found = [q.spec for q in stage.fleet.store.objects("EngineQuarantine")]
    return {str(q.device_class) for q in found if isinstance(q, QuarantineSpec) and q.digest in digests}


def _refusals(stage: Stage) -> dict[str, str]:
    body = yaml.safe_load(stage.sets["bokeh-naive-fp16"].read_text())
    again = {**body, "metadata": {"name": "bokeh-naive-again"}}
    stage.roll("bokeh-fp32", policy="standard", waves=WAVES)
    stage.wait(lambda: stage.rollout().phase == "Promoted", 60, "return to the FP32 set")
    return {
        "re-creating the set is refused by digest": _refusal(lambda: stage.apply(again)),
        "pointing the rollout at it again is refused by digest": _refusal(
            lambda: stage.roll("bokeh-naive-fp16", policy="standard", waves=WAVES)
        ),
    }


def _refusal(write: Callable[[], object]) -> str:
    try:
        write()
    except AdmissionRefused as error:
        return str(error)
    return "accepted"


def mixed(stage: Stage) -> list[Act]:
    """Per-class mixed engines pass, are shadowed, go wave by wave and are promoted under load."""
    started = time.monotonic()
    waves_seen: list[str] = []
    spec = stage.apply_set("bokeh-mixed")
    stage.roll("bokeh-mixed", policy="standard", waves=WAVES)

    def promoted() -> bool:
        status = stage.rollout()
        if status.wave and (not waves_seen or waves_seen[-1] != status.wave):
            waves_seen.append(status.wave)
        return status.phase == "Promoted"

    stage.wait(promoted, 150, "promotion of the mixed engines")
    for name, camera in stage.cameras.items():
        stage.watch_answers((name,), camera.count() + CALM_ANSWERS)
    answers = stage.take()
    acts = []
    for device_class in CLASSES:
        variant = reduced(spec, device_class)
        act = Act(name="mixed", candidate=candidate(variant), verdict="Pass", reason="Promoted", stage="Live")
        nodes = {n.name for n in stage.nodes() if n.device_class == device_class}
        served = {d for n, d in stage.serving().items() if n in nodes}
        act.promise(
            "every node of the class serves its mixed engine", served == {variant.artifact.digest}, ", ".join(served)
        )
        act.promise("it went wave by wave", waves_seen == ["canary", "fleet"], ", then ".join(waves_seen))
        stage.close(act, [a for a in answers if a.node in nodes], started=started)
        own = [a for a in answers if a.node in nodes and a.digest == variant.artifact.digest]
        act.value = f"{stage.truth.worst_error(own):.6f}"
        act.limit = {"a100": "0.0012", "jetson-orin": "0.0035"}[device_class]
        act.promise("no damaged frame was served", act.bad_frames_served == 0, f"worst error {act.worst_error:.2g}")
        acts.append(act)
    return acts


def live_only(stage: Stage) -> list[Act]:
    """Right on golden frames, all zero on glaring live ones: orin-0 trips alone, then orin-1; the class reverts."""
    started = time.monotonic()
    before = stage.serving()
    spec = stage.apply_set("bokeh-live-only")
    variant = reduced(spec, "jetson-orin")
    digest = variant.artifact.digest
    waves = [{"name": "both", "percent": 100, "soak": "5m"}]
    stage.roll("bokeh-live-only", policy="standard", waves=waves, classes=("jetson-orin",))
    stage.wait(lambda: all(stage.serving()[n] == digest for n in ORINS), 120, "both Orins serving the new engine")
    trips: list[TripStatus] = []
    alone: dict[str, str] = {}
    standing_in = ""
    for node in ORINS:
        stage.cameras[node].show(stage.playlist.glaring)
        stage.wait(partial(_tripped, stage, node, digest), 60, f"a trip on {node}")
        trip = stage.node(node).last_trip
        assert trip is not None
        trips.append(trip)
        if node == "orin-0":
            stage.watch_answers((node,), stage.cameras[node].count() + CALM_ANSWERS)
            alone, standing_in = stage.serving(), stage_precision(stage, node)
        stage.cameras[node].show(stage.playlist.calm)
    stage.wait(lambda: bool(_quarantines(stage, spec)), 30, "quarantine of the live-only engine")
    stage.wait(lambda: all(stage.serving()[n] == before[n] for n in ORINS), 60, "return of the class to the mixed set")
    answers = stage.take()
    act = Act(name="live-only", candidate=candidate(variant), verdict="Fail", reason=trips[0].reason, stage="Live")
    _from_trip(act, trips[0])
    act.notes = {"trips": [t.wire() for t in trips], "precision_after_first_trip": standing_in}
    act.promise("orin-0 served FP32 after its trip", standing_in == "FP32", alone["orin-0"])
    act.promise("orin-1 was left alone until it tripped itself", alone["orin-1"] == digest, alone["orin-1"])
    act.promise("after the second trip the digest is quarantined", _quarantines(stage, spec) == {"jetson-orin"})
    act.promise("a100-0 never noticed", stage.serving()["a100-0"] == before["a100-0"])
    withheld = [a for a in answers if a.withheld]
    act.notes["frames_withheld"] = len(withheld)
    answered = bool(withheld) and not any(a.failed for a in withheld)
    act.promise("bad frames were withheld and answered in the same request", answered, f"{len(withheld)} withheld")
    for trip, node in zip(trips, ORINS, strict=True):
        act.pictures += evidence_pictures(stage, trip.evidence, f"live-only-{node}", node=node)
        same = replays(stage, trip.evidence, node=node)
        act.promise(f"replaying the evidence of {node} gives the same verdict", same)
    stage.close(act, answers, started=started)
    act.promise("no damaged frame was served", act.bad_frames_served == 0)
    return [act]


def silent_int8(stage: Stage) -> list[Act]:
    """INT8 forced past the gate by a policy that only warns there: three damaged live frames, and it is off."""
    started = time.monotonic()
    spec = stage.apply_set("bokeh-int8")
    variant = reduced(spec, "jetson-orin")
    digest = variant.artifact.digest
    stage.cameras["orin-1"].pause()
    waves = [{"name": "both", "percent": 100, "soak": "5m"}]
    stage.roll("bokeh-int8", policy="forced", waves=waves, classes=("jetson-orin",))
    stage.wait(lambda: _tripped(stage, "orin-0", digest), 120, "a trip on orin-0")
    trip = stage.node("orin-0").last_trip
    assert trip is not None
    stage.watch_answers(("orin-0",), stage.cameras["orin-0"].count() + CALM_ANSWERS)
    answers = stage.take()
    act = Act(name="silent-int8", candidate=candidate(variant), verdict="Fail", reason=trip.reason, stage="Live")
    _from_trip(act, trip)
    stage.close(act, answers, started=started)
    served = [a for a in answers if a.digest == digest]
    act.notes = {
        "damaged_frames_judged": trip.frames_to_detect,
        "damaged_frames_served": act.bad_frames_served,
        "sent_before_the_third_verdict": act.bad_frames_served - trip.frames_to_detect,
        "answers_of_the_engine": len(served),
    }
    act.promise("DEER tripped it on 3 consecutive frames", trip.frames_to_detect == 3, trip.frames_to_detect)
    later = [a for a in answers if a.sent > max((s.done for s in served), default=0.0)]
    act.promise("no damaged frame came after the swap", not stage.truth.damaged(later), len(later))
    act.promise("orin-0 serves FP32", stage_precision(stage, "orin-0") == "FP32", stage_precision(stage, "orin-0"))
    act.pictures = evidence_pictures(stage, trip.evidence, "silent-int8", node="orin-0")
    act.promise("replaying its evidence gives the same verdict", replays(stage, trip.evidence, node="orin-0"))
    return [act]


def power_cut(stage: Stage) -> list[Act]:
    """kill -9 of agent and Triton on the tripped node: it comes back serving what it served."""
    started = time.monotonic()
    before, route = stage.node("orin-0"), stage.route("orin-0")
    assert route is not None
    back_s = cut_power(stage, "orin-0", route)
    stage.watch_answers(("orin-0",), stage.cameras["orin-0"].count() + CALM_ANSWERS)
    answers = stage.take()
    after, now = stage.node("orin-0"), stage.route("orin-0")
    assert now is not None
    act = Act(
        name="power-cut",
        candidate={"digest": route.active.digest, "precision": route.active.precision, "class": "jetson-orin"},
        verdict="Pass",
        reason="Resumed",
        stage="Live",
    )
    act.notes = {"back_s": round(back_s, 2), "epoch_before": route.epoch, "epoch_after": now.epoch}
    same = (now.active.digest, now.serving) == (route.active.digest, route.serving)
    act.promise("it serves what it served", same, now.active.engine)
    act.promise("the epoch is not lower", now.epoch >= route.epoch, f"{route.epoch} -> {now.epoch}")
    act.promise("it did not trip or swap twice", after.trips == before.trips, f"{before.trips} -> {after.trips}")
    stage.close(act, answers, started=started)
    act.promise("no damaged frame was served", act.bad_frames_served == 0)
    return [act]


def _tripped(stage: Stage, node: str, digest: str) -> bool:
    trip, route = stage.node(node).last_trip, stage.route(node)
    return trip is not None and trip.digest == digest and route is not None and route.active.digest != digest


def _from_trip(act: Act, trip: TripStatus) -> None:
    act.value, act.limit = trip.value, trip.limit
    act.frames_to_detect, act.swap_ms = trip.frames_to_detect, trip.swap_ms


def stage_precision(stage: Stage, node: str) -> str:
    """Return the precision of the engine that answers on a node."""
    route = stage.route(node)
    return route.active.precision if route else ""


ACTS: tuple[tuple[str, Callable[[Stage], list[Act]]], ...] = (
    ("baseline", baseline),
    ("naive-fp16", naive_fp16),
    ("mixed", mixed),
    ("live-only", live_only),
    ("silent-int8", silent_int8),
    ("power-cut", power_cut),
)
