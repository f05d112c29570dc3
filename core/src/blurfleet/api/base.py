"""What all kinds share: camelCase on the wire, frozen, unknown fields refused, durations and fractions as text."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from blurfleet.identity import DIGEST_PATTERN

GROUP = "blurfleet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_DURATION = re.compile(r"^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?$")
DURATION_PATTERN = r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"
FRACTION_PATTERN = r"^[0-9]+(\.[0-9]+)?$"


def seconds(duration: str) -> float:
    """Return a duration such as `2m`, `1h30m` or `250ms` in seconds. Raises ValueError on any other text."""
    match = _DURATION.match(duration)
    if not duration or match is None:
        raise ValueError(f"{duration!r} is not a duration; write for example 250ms, 90s, 2m or 1h30m")
    hours, minutes, secs, millis = (int(part or 0) for part in match.groups())
    return hours * 3600.0 + minutes * 60.0 + secs + millis / 1000.0


def _duration(text: str) -> str:
    seconds(text)
    return text


def _text_only(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{value!r} is a number; write it as text: "{value}"')
    return value


def _fraction(text: str) -> str:
    if not re.match(FRACTION_PATTERN, text) or not math.isfinite(float(text)):
        raise ValueError(f'{text!r} is not a decimal number; write it as text, for example "0.0035"')
    return text


Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32), AfterValidator(_duration)]
Fraction = Annotated[
    str, Field(pattern=FRACTION_PATTERN, max_length=24), AfterValidator(_fraction), BeforeValidator(_text_only)
]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
Precision = Literal["FP32", "FP16", "Mixed", "INT8"]


class Model(BaseModel):
    """Base of every model on the wire: frozen, camelCase, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, validate_default=True
    )

    def wire(self) -> dict[str, Any]:
        """Return the object as it is written: camelCase keys, no nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def sparse(self) -> dict[str, Any]:
        """Return the object as `wire` does, without what parsing fills in again: fields that hold their defaults.

        Defaults are part of an API version and never change within it, so a reader of any release fills in the same.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
