"""May a spec be started: the chain's checks, one sentence each, and which of two that hold is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_fleet import FACTS, NOW, digest, policy_spec, rollout_spec, set_spec

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.api.engineset import EngineSetSpec, Interface
from blurfleet.api.meta import timestamp
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.rollout import RolloutStatus
from blurfleet.contract import contract_hash
from blurfleet.reasons import Reason
from blurfleet_operator.decide.acceptance import CHAIN, Asked, refusal
from blurfleet_operator.decide.choice import engine_ref
from blurfleet_operator.decide.observation import NodeView, Observation, RolloutView

RGB, OTHER = ContractSpec(), contract_at(160)
BAD = QuarantineSpec(digest=digest("mixed-a100"), reason="DEERExceeded", device_class="a100")


def node(
    name: str = "a100-0", device_class: str = "a100", *, runtime: str | None = None, contract: str = ""
) -> NodeView:
    facts = FACTS if runtime is None else FACTS.model_copy(update={"runtime_version": runtime})
    served = NodeModel(
        name="bokeh",
        primary=engine_ref("old", set_spec("old").variants[0]),
        contract_hash=contract or contract_hash(RGB),
    )
    return NodeView(
        name=name,
        spec=NodeEngineSpec(device_class=device_class, models=(served,)),
        status=NodeEngineStatus(heartbeat=timestamp(NOW), facts=facts),
    )


def rollout(name: str = "bokeh", created: str = "2027-01-02T00:00:00Z", **fields: Any) -> RolloutView:
    spec = rollout_spec(fields.pop("engine_set", "mixed"), **fields)
    return RolloutView(name=name, namespace="default", created=created, spec=spec, status=RolloutStatus())


def observation(**changes: Any) -> Observation:
    base = Observation(
        rollout=rollout(),
        sets={"mixed": set_spec("mixed", precision="Mixed"), "fp32": set_spec("fp32")},
        policies={"strict": policy_spec()},
        contracts={"rgb": RGB},
        contract_hashes={"rgb": contract_hash(RGB)},
        nodes=(node(),),
    )
    return replace(base, **changes)


def lpips() -> PolicySpec:
    return policy_spec(metrics=[{"metric": "LPIPS", "source": "Golden", "limit": "0.23"}])


def only_for(device_class: str) -> PolicySpec:
    rule = {"metric": "DEER", "source": "Live", "limit": "0.18", "classes": [device_class]}
    return policy_spec(metrics=[rule])


def face(*, output: str = "matte", side: int = 160, dtype: str = "float32") -> Interface:
    return Interface.model_validate(
        {
            "inputs": [{"name": "image", "dtype": dtype, "shape": [1, 3, side, side]}],
            "outputs": [{"name": output, "dtype": dtype, "shape": [1, 1, side, side]}],
        }
    )


def sets_with(new: Interface | None) -> dict[str, EngineSetSpec]:
    return {"mixed": set_spec("mixed", precision="Mixed").model_copy(update={"interface": new})}


def served_by(old: Interface | None) -> EngineSetSpec:
    return set_spec("old").model_copy(update={"interface": old})


OLDER = rollout("first", "2027-01-01T00:00:00Z")
YOUNGER = rollout("second", "2027-01-03T00:00:00Z")
FOREIGN = {"mixed": set_spec("mixed", precision="Mixed").model_copy(update={"model": "depth"})}
CHANGED = (node(contract=contract_hash(OTHER)),)
NEIGHBOUR = (node(runtime="onnxruntime-1.32.1"),)

TABLE: list[Any] = [
    pytest.param({}, None, id="a set that fits is accepted"),
    pytest.param({"rollout": rollout(engine_set="typo")}, Reason.UNKNOWN_ENGINE_SET, id="no such set"),
    pytest.param({"sets": FOREIGN}, Reason.UNKNOWN_ENGINE_SET, id="the set is of another model"),
    pytest.param({"policies": {}}, Reason.UNKNOWN_POLICY, id="no such policy"),
    pytest.param({"policies": {"strict": PolicySpec()}}, Reason.POLICY_WITHOUT_LIMITS, id="a policy without limits"),
    pytest.param(
        {"policies": {"strict": only_for("jetson-orin")}},
        Reason.POLICY_WITHOUT_LIMITS,
        id="a policy that judges only classes that are not selected",
    ),
    pytest.param({"policies": {"strict": lpips()}}, Reason.METRIC_UNAVAILABLE, id="a metric nobody can measure yet"),
    pytest.param(
        {"policies": {"strict": only_for("h100")}}, Reason.UNKNOWN_CLASS, id="a policy names an unknown class"
    ),
    pytest.param(
        {"rollout": rollout(selector={"classes": ("h100",)}), "nodes": ()},
        Reason.UNKNOWN_CLASS,
        id="the selector names an unknown class",
    ),
    pytest.param({"contracts": {}, "contract_hashes": {}}, Reason.UNKNOWN_CONTRACT, id="the set's contract is missing"),
    pytest.param({"others": (OLDER,)}, Reason.MODEL_OWNED, id="an older rollout owns the model on a node"),
    pytest.param({"others": (YOUNGER,)}, None, id="a younger rollout does not matter"),
    pytest.param(
        {"others": (rollout("first", "2027-01-01T00:00:00Z", selector={"classes": ("jetson-orin",)}),)},
        None,
        id="an older rollout on other nodes does not matter",
    ),
    pytest.param({"quarantines": (BAD,)}, Reason.QUARANTINED, id="the set holds a digest quarantined for the class"),
    pytest.param(
        {"quarantines": (BAD.model_copy(update={"device_class": None}),)},
        Reason.QUARANTINED,
        id="the set holds a digest quarantined everywhere",
    ),
    pytest.param(
        {"quarantines": (BAD,), "nodes": (node("orin-0", "jetson-orin"),)},
        None,
        id="a digest quarantined for a class that is not selected does not matter",
    ),
    pytest.param({"nodes": CHANGED}, Reason.CONTRACT_CHANGED, id="nodes serve under another contract"),
    pytest.param(
        {"nodes": NEIGHBOUR}, Reason.NO_VARIANT_FOR_NODE, id="a patch of the runtime apart is another runtime"
    ),
    *(
        pytest.param({"sets": {**sets_with(new), "old": old}}, reason, id=name)
        for name, new, old, reason in (
            ("tensors of the same names and shapes", face(), served_by(face()), None),
            ("an output of another name", face(output="alpha"), served_by(face()), Reason.CONTRACT_CHANGED),
            ("an input of another shape", face(side=320), served_by(face()), Reason.CONTRACT_CHANGED),
            ("another dtype", face(dtype="float16"), served_by(face()), Reason.CONTRACT_CHANGED),
            ("a new set that does not say its tensors", None, served_by(face()), None),
            ("a served set that does not say its tensors", face(), served_by(None), None),
        )
    ),
    pytest.param(
        {"sets": {**sets_with(face(side=320)), "old": served_by(face())}, "nodes": (*CHANGED,)},
        Reason.CONTRACT_CHANGED,
        id="a changed contract and changed tensors are one reason",
    ),
    # Order: of two that hold, the earlier is shown.
    pytest.param(
        {"rollout": rollout(engine_set="typo"), "policies": {}},
        Reason.UNKNOWN_ENGINE_SET,
        id="a missing set before a policy",
    ),
    pytest.param(
        {"policies": {}, "others": (OLDER,)},
        Reason.UNKNOWN_POLICY,
        id="a spec that is wrong before one that is not owner",
    ),
    pytest.param({"others": (OLDER,), "quarantines": (BAD,)}, Reason.MODEL_OWNED, id="ownership before quarantine"),
    pytest.param(
        {"quarantines": (BAD,), "nodes": CHANGED}, Reason.QUARANTINED, id="quarantine before a changed contract"
    ),
    pytest.param(
        {"nodes": (*CHANGED, *NEIGHBOUR)}, Reason.CONTRACT_CHANGED, id="a changed contract before a missing variant"
    ),
]


@pytest.mark.parametrize(("changes", "reason"), TABLE)
def test_the_first_violation_is_the_answer(changes: dict[str, Any], reason: Reason | None) -> None:
    obs = observation(**changes)
    found = refusal(Asked(obs=obs, selected=obs.nodes, starting=True, now=NOW))
    assert (found.reason if found else None) == reason
    assert found is None or len(found.message) > 20


def test_the_order_of_the_chain_is_the_documented_one() -> None:
    names = [check.__name__ for check in CHAIN]
    assert names == [
        "known_set",
        "known_policy",
        "known_classes",
        "known_contract",
        "not_owned",
        "not_quarantined",
        "same_contract",
        "same_interface",
        "compatible",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"quarantines": (BAD,)}, id="a quarantine"),
        pytest.param({"nodes": CHANGED}, id="another contract"),
        pytest.param({"policies": {}}, id="a deleted policy, whose snapshot is kept"),
    ],
)
def test_a_running_attempt_is_not_refused_for_what_only_matters_at_its_begin(changes: dict[str, Any]) -> None:
    obs = observation(**changes)
    running = replace(obs.rollout, status=RolloutStatus(set="mixed", policy_name="strict"))
    assert refusal(Asked(obs=replace(obs, rollout=running), selected=obs.nodes, starting=False, now=NOW)) is None


def test_the_refusal_of_a_quarantined_set_names_digest_class_and_cause() -> None:
    obs = observation(quarantines=(BAD,))
    found = refusal(Asked(obs=obs, selected=obs.nodes, starting=True, now=NOW))
    assert found is not None
    assert all(word in found.message for word in (BAD.digest, "a100", "DEERExceeded", "mixed"))


def test_a_node_that_was_never_heard_from_does_not_refuse_the_set() -> None:
    silent = replace(node(runtime="other"), status=NodeEngineStatus())
    obs = observation(nodes=(node(), silent))
    assert refusal(Asked(obs=obs, selected=obs.nodes, starting=True, now=NOW)) is None


def test_the_refusal_of_other_tensors_names_both() -> None:
    obs = observation(sets={**sets_with(face(output="alpha")), "old": served_by(face())})
    found = refusal(Asked(obs=obs, selected=obs.nodes, starting=True, now=NOW))
    assert found is not None
    assert "alpha float32[1, 1, 160, 160]" in found.message
    assert "matte float32[1, 1, 160, 160]" in found.message
