"""Which variant a node gets, which nodes a selector means, and where a class goes back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blurfleet.api.engineset import EngineSetSpec, Variant
from blurfleet.api.nodeengine import EngineRef, NodeFacts
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.rollout import KnownGood, Selector
from blurfleet_operator.decide.observation import NodeView


def selects(selector: Selector, node: NodeView) -> bool:
    """Tell whether every given condition of `selector` holds for `node`; an empty one selects all."""
    return (
        (not selector.classes or node.device_class in selector.classes)
        and (not selector.nodes or node.name in selector.nodes)
        and all(node.labels.get(k) == v for k, v in selector.match_labels.items())
    )


def quarantined_digests(quarantines: Iterable[QuarantineSpec], device_class: str) -> frozenset[str]:
    """Return the digests that nodes of `device_class` must not serve."""
    return frozenset(q.digest for q in quarantines if q.device_class in (None, device_class))


def fits(variant: Variant, device_class: str, facts: NodeFacts) -> bool:
    """Tell whether `variant` was built for exactly this class, compute capability, platform and runtime version."""
    target = variant.target
    return (
        target.device_class == device_class
        and target.sm == facts.sm
        and target.platform == facts.platform
        and target.runtime_version == facts.runtime_version
    )


def variants_for(engine_set: EngineSetSpec, node: NodeView, refused: frozenset[str] = frozenset()) -> list[Variant]:
    """Return the variants that `node` may run, best first: reduced precision in the set's order, then FP32."""
    usable = [
        v
        for v in engine_set.variants
        if fits(v, node.device_class, node.status.facts) and v.artifact.digest not in refused
    ]
    return sorted(usable, key=lambda v: v.precision == "FP32")


def engine_ref(set_name: str, variant: Variant) -> EngineRef:
    """Return `variant` as a NodeEngine names it."""
    return EngineRef(
        set=set_name,
        variant=variant.name,
        digest=variant.artifact.digest,
        precision=variant.precision,
        artifact=variant.artifact,
        build_record=variant.build_record,
        memory_bytes=variant.memory_bytes,
    )


def best(
    sets: Mapping[str, EngineSetSpec], name: str, node: NodeView, refused: frozenset[str], *, fp32: bool = False
) -> EngineRef | None:
    """Return the engine of set `name` for `node`, its FP32 one with `fp32`; None where there is none to be used."""
    if name not in sets:
        return None
    found = variants_for(sets[name], node, refused)
    if fp32:
        found = [v for v in found if v.precision == "FP32"]
    return engine_ref(name, found[0]) if found else None


def known_good_for(known: Iterable[KnownGood], device_class: str, *, but: str = "") -> list[KnownGood]:
    """Return the promoted sets of a class, newest first, leaving out the set named `but`."""
    return [k for k in known if k.device_class == device_class and k.set != but]


def revert_target(
    sets: Mapping[str, EngineSetSpec],
    known: Iterable[KnownGood],
    node: NodeView,
    refused: frozenset[str],
) -> tuple[KnownGood, EngineRef] | None:
    """Return the newest promoted set, with its engine, that `node` can go back to: a proven pointer, never "n-1"."""
    for good in known_good_for(known, node.device_class):
        # A set that was given up and is all there is has no time: only its FP32 is left to trust.
        engine = best(sets, good.set, node, refused, fp32=not good.at)
        if engine is not None:
            return good, engine
    return None
