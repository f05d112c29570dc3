"""Cross-field rules of the kinds as the API server judges them (CEL), with the sentence a person reads on refusal.

They say what the models' own validators say, so that a folder of YAML and a cluster refuse the same objects. `self` is
the value at the rule's path; a path is the field names from the object's root, `[]` stepping into a list's items.
"""

from __future__ import annotations

from dataclasses import dataclass

from blurfleet.api.nodeengine import DEVICE_CLASSES
from blurfleet.api.policy import SENTINELS


@dataclass(frozen=True, kw_only=True)
class FieldRule:
    """One rule at `path` of a kind: CEL expression, message, optionally an expression that makes a fuller message."""

    path: str
    rule: str
    message: str
    told: str = ""


def _fixed(kind: str) -> FieldRule:
    return FieldRule(path="spec", rule="self == oldSelf", message=f"{kind} is immutable; create one with another name")


_SENTINELS = "[" + ", ".join(f"'{name}'" for name in sorted(SENTINELS)) + "]"
_LAST = "self.waves[size(self.waves) - 1]"
_DECIMAL = r"^[-+]?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?$"


def _axis(name: str) -> tuple[FieldRule, ...]:
    return (
        FieldRule(
            path=f"spec.{name}",
            rule="self.min <= self.opt && self.opt <= self.max",
            message=f"{name} needs min <= opt <= max",
        ),
        FieldRule(
            path=f"spec.{name}",
            rule="[self.min, self.opt, self.max].all(v, v % self.multipleOf == 0)",
            message=f"{name}: min, opt and max must be multiples of multipleOf",
        ),
    )


RULES: dict[str, tuple[FieldRule, ...]] = {
    "EngineSet": (
        _fixed("EngineSet"),
        FieldRule(
            path="spec",
            rule=(
                "self.variants.filter(v, v.precision != 'FP32')"
                ".all(v, self.variants.exists(f, f.precision == 'FP32' && f.target == v.target))"
            ),
            message=(
                "every reduced-precision variant needs an FP32 variant for the same target "
                "(class, sm, platform, runtimeVersion): nodes swap to it"
            ),
        ),
    ),
    "PreprocessContract": (
        _fixed("PreprocessContract"),
        *_axis("height"),
        *_axis("width"),
        FieldRule(
            path="spec",
            rule=f"self.scale.matches('{_DECIMAL}') && double(self.scale) > 0.0",
            message='scale must be a positive decimal number written as text, for example "255"',
        ),
        FieldRule(
            path="spec",
            rule=f"self.mean.all(m, m.matches('{_DECIMAL}'))",
            message='mean needs three decimal numbers written as text, for example "0.485"',
        ),
        FieldRule(
            path="spec",
            rule=f"self.std.all(s, s.matches('{_DECIMAL}') && double(s) > 0.0)",
            message='std needs three positive decimal numbers written as text, for example "0.229"',
        ),
        FieldRule(
            path="spec",
            rule="self.background.all(level, level >= 0 && level <= 255)",
            message="background needs three levels in 0..255",
        ),
    ),
    "QualityPolicy": (
        FieldRule(
            path="spec.metrics[].trip",
            rule="has(self.frames) != has(self.__for__)",
            message="trip needs exactly one of `frames` and `for`",
        ),
        FieldRule(
            path="spec.metrics[].trip",
            rule="!has(self.window) || (has(self.frames) && self.window >= self.frames)",
            message="trip.window goes with trip.frames and is not smaller than it",
        ),
        FieldRule(
            path="spec.metrics[].trip",
            rule="!has(self.maxGap) || has(self.__for__)",
            message="trip.maxGap goes with trip.for",
        ),
        FieldRule(
            path="spec.metrics[]",
            rule=f"!(self.metric in {_SENTINELS}) || !has(self.limit)",
            message="a sentinel (NonFinite, OutOfRange, Collapsed) takes no limit",
            told="self.metric + ' is a sentinel and takes no limit'",
        ),
        FieldRule(
            path="spec.metrics[]",
            rule=f"self.metric in {_SENTINELS} || has(self.limit)",
            message="a metric that is no sentinel needs a limit",
            told="self.metric + ' needs a limit'",
        ),
    ),
    "EngineRollout": (
        FieldRule(
            path="spec.waves[]",
            rule="has(self.percent) != (has(self.nodes) && size(self.nodes) > 0)",
            message="a wave needs exactly one of `percent` and `nodes`",
            told="'wave ' + self.name + ' needs exactly one of `percent` and `nodes`'",
        ),
        FieldRule(
            path="spec",
            rule="self.waves.filter(w, has(w.percent)).map(w, w.percent).isSorted()",
            message="wave percentages must not decrease: each is the share reached so far",
        ),
        FieldRule(
            path="spec",
            rule=f"!has({_LAST}.percent) || {_LAST}.percent == 100",
            message="the last wave must be 100 percent or name its nodes: it is everybody",
        ),
        FieldRule(
            path="spec",
            rule="self.model == oldSelf.model",
            message="model cannot change; create another EngineRollout for another model",
        ),
    ),
    "NodeEngine": (
        FieldRule(
            path="spec.deviceClass",
            rule=f"self in [{', '.join(repr(name) for name in DEVICE_CLASSES)}]",
            message=f"unknown deviceClass; one of {', '.join(DEVICE_CLASSES)}",
        ),
    ),
    "QualityRun": (_fixed("QualityRun"),),
    "EngineQuarantine": (
        FieldRule(
            path="spec",
            rule="self.digest == oldSelf.digest && has(self.class) == has(oldSelf.class) "
            "&& (!has(self.class) || self.class == oldSelf.class)",
            message="digest and class of a quarantine cannot change; delete it to lift it, create another for more",
        ),
        FieldRule(
            path="spec",
            rule="!has(self.expiry) || self.expiry.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
            "([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$')",
            message="expiry is not a time; write for example 2030-01-31T12:00:00Z",
        ),
    ),
}
