"""Which variant a node gets, which nodes a selector means, and where a class goes back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blurfleet.api.engineset import EngineSetSpec, Variant
from blurfleet.api.nodeengine import EngineRef, NodeFacts, NodeModel
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


def kind_of(node: NodeView) -> tuple[str, int, str, str]:
    """Return all of `node` that `fits` looks at: nodes of one kind get the same engines of a set."""
    facts = node.status.facts
    return node.device_class, facts.sm, facts.platform, facts.runtime_version


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


def source_of(sets: Mapping[str, EngineSetSpec], engine: EngineRef) -> EngineSetSpec | None:
    """Return the set `engine` came from, None where it is gone or its name was given to other bytes."""
    found = sets.get(engine.set)
    return found if found and any(v.artifact.digest == engine.digest for v in found.variants) else None


def known_good_for(known: Iterable[KnownGood], device_class: str) -> list[KnownGood]:
    """Return the promoted sets of a class, newest first."""
    return [k for k in known if k.device_class == device_class]


def good_engine(
    sets: Mapping[str, EngineSetSpec],
    good: KnownGood,
    node: NodeView,
    refused: frozenset[str],
    held: NodeModel | None = None,
    *,
    fp32: bool = False,
) -> EngineRef | None:
    """Return the engine of a promoted set for `node`, by the digests it was promoted with; None where there is none.

    The primary that `held` names stays where it is one of them: it is proven on this very node. Where the set is gone,
    or its name was given to other bytes, the node still has the promoted ones that `held` names.
    """
    fp32 = fp32 or not good.at  # a set that was given up and is all there is: only its FP32 is left to trust
    mine = {v.artifact.digest for v in sets[good.set].variants} if good.set in sets else set()
    others = frozenset(d for d in mine if not good.vouches(good.set, d))
    found = best(sets, good.set, node, refused | others, fp32=fp32)
    fitting = {v.artifact.digest for v in variants_for(sets[good.set], node)} if found else set()

    def stays(engine: EngineRef | None) -> bool:
        if engine is None or engine.digest in refused or (fp32 and engine.precision != "FP32"):
            return False
        return good.vouches(engine.set, engine.digest) and (found is None or engine.digest in fitting)

    primary, fallback = (held.primary, held.fallback) if held else (None, None)
    if stays(primary):
        return primary
    return found or (fallback if stays(fallback) else None)


def revert_target(
    sets: Mapping[str, EngineSetSpec],
    known: Iterable[KnownGood],
    node: NodeView,
    refused: frozenset[str],
    held: NodeModel | None,
) -> tuple[KnownGood, EngineRef] | None:
    """Return the newest promoted set, with its engine, that `node` can go back to: a proven pointer, never "n-1".

    `held` is what the node is told now: it keeps its engines where the set they came from was deleted.
    """
    for good in known_good_for(known, node.device_class):
        engine = good_engine(sets, good, node, refused, held)
        if engine is not None:
            return good, engine
    return None
