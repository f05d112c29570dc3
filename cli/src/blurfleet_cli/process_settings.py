"""Settings of a process from its environment, and the sentence where they are wrong."""

from __future__ import annotations

from typing import TypeVar

from pydantic import AliasChoices, ValidationError
from pydantic_settings import BaseSettings

from blurfleet.errors import InvalidSpec
from blurfleet.reasons import Reason

S = TypeVar("S", bound=BaseSettings)


def settings_of(kind: type[S], command: str) -> S:
    """Return the settings of `blurfleet COMMAND`. Raises InvalidSpec that names each variable as it is set."""
    try:
        return kind()
    except ValidationError as error:
        said = []
        for item in error.errors(include_url=False):
            first, *rest = item["loc"] or ("",)
            place = ".".join((variable(kind, str(first)), *map(str, rest)))
            text = item["msg"].removeprefix("Value error, ")
            if item["type"] == "missing" and not rest:
                said.append(f"{place} is not set")
            else:  # a rule between two settings names them itself
                said.append(f"{place}: {text}" if place else text)
        raise InvalidSpec(
            Reason.INVALID_SPEC,
            "; ".join(said),
            where="environment",
            fix=f"set what is named; `blurfleet {command} --help` has an example",
        ) from error


def variable(kind: type[BaseSettings], field: str) -> str:
    """Return the environment variable that sets `field`, which pydantic may call by its alias."""
    found = kind.model_fields.get(field)
    alias = found.validation_alias if found is not None else None
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    if alias is not None or found is None:
        return str(alias or field)
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()
