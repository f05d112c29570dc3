"""The options of `/v1/blur` and `/v1/matte`, read strictly: each refusal names the option and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, cast, get_args

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_preprocess.compositing.defocus import Style
from blurfleet_preprocess.compositing.look import MAX_RADIUS, MIN_RADIUS, Background, Look, Mode
from blurfleet_preprocess.picture import ImageFormat

MatteForm = Literal["png", "npy"]
_NUMBER = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_COLOUR = re.compile(r"#?([0-9a-fA-F]{6})")
_KNOWN = ("radius", "style", "mode", "focus", "format", "background", "color")


def look_of(asked: Iterable[tuple[str, str]]) -> tuple[Look, ImageFormat]:
    """Return the look and the format that a query's pairs ask for.

    Raises InvalidInput InvalidRequest, `where` the option: unknown, given twice, out of its range, or without another
    that it belongs to.
    """
    query = _once_each(asked, _KNOWN)
    mode = cast("Mode", _one_of(query, "mode", get_args(Mode), "matte"))
    background = cast("Background", _one_of(query, "background", get_args(Background), "blur"))
    if mode == "depth" and background != "blur":
        raise _refused(f"mode depth has no subject to keep on {background}", "background", "leave it out or use blur")
    for name, belongs, fits in (
        ("focus", "mode=depth", mode == "depth"),
        ("color", "background=color", background == "color"),
    ):
        if name in query and not fits:
            raise _refused(f"{name} says nothing without {belongs}", name, f"add {belongs}")
    form = _format(query, background)
    return Look(
        radius=_number(query, "radius", MIN_RADIUS, MAX_RADIUS),
        style=cast("Style", _one_of(query, "style", get_args(Style), "gaussian")),
        mode=mode,
        focus=_number(query, "focus", 0.0, 1.0),
        background=background,
        colour=_colour(query),
    ), form


def matte_form_of(asked: Iterable[tuple[str, str]], default: MatteForm) -> MatteForm:
    """Return the format that the query of `/v1/matte` asks for. Raises InvalidInput as `look_of` does."""
    return cast("MatteForm", _one_of(_once_each(asked, ("format",)), "format", get_args(MatteForm), default))


def _once_each(asked: Iterable[tuple[str, str]], known: tuple[str, ...]) -> dict[str, str]:
    query = dict[str, str]()
    for name, value in asked:
        if name not in known:
            raise _refused(f"{name[:40]!r} is no option", "query", f"use {', '.join(known)}")
        if name in query:
            raise _refused(f"{name} is given twice", name, "give it once")
        query[name] = value
    return query


def _format(query: Mapping[str, str], background: str) -> ImageFormat:
    default = "png" if background == "transparent" else "jpeg"
    form = cast("ImageFormat", _one_of(query, "format", get_args(ImageFormat), default))
    if background == "transparent" and form == "jpeg":
        raise _refused("jpeg holds no transparency", "format", "ask for png or webp")
    return form


def _one_of(query: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    chosen = query.get(name, default)
    if chosen not in allowed:
        raise _refused(f"{name} {chosen[:40]!r} is not one of {', '.join(allowed)}", name, f"use {allowed[0]}")
    return chosen


def _number(query: Mapping[str, str], name: str, low: float, high: float) -> float | None:
    """Return the number asked for, None for auto."""
    text = query.get(name, "auto")
    if text == "auto":
        return None
    if not _NUMBER.fullmatch(text) or not low <= float(text) <= high:
        raise _refused(
            f"{name} {text[:40]!r} is neither auto nor {low:g} to {high:g}", name, f"use auto, or {high / 4:g}"
        )
    return float(text)


def _colour(query: Mapping[str, str]) -> tuple[int, int, int]:
    found = _COLOUR.fullmatch(query.get("color", "ffffff"))
    if found is None:
        raise _refused(f"color {query['color'][:40]!r} is not six hex digits", "color", "write red as ff0000")
    red, green, blue = bytes.fromhex(found[1])
    return red, green, blue


def _refused(message: str, where: str, fix: str) -> InvalidInput:
    return InvalidInput(Reason.INVALID_REQUEST, message, where=where, fix=fix)
