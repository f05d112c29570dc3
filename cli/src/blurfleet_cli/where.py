"""Where a local fleet keeps its things, and the option that names another place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from blurfleet.errors import UnknownName
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore

DEFAULT_FLEET = Path("out/fleet")


def fleet_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--fleet DIR`: the folder of a local fleet (default out/fleet, or BLURFLEET_FLEET)."""
    return click.option(
        "--fleet",
        type=click.Path(path_type=Path, file_okay=False),
        default=DEFAULT_FLEET,
        envvar="BLURFLEET_FLEET",
        show_default=True,
        help="Folder of the local fleet.",
    )(function)


def namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-n NAMESPACE` (default `default`)."""
    return click.option(
        "-n",
        "--namespace",
        default="default",
        show_default=True,
        help="Namespace of kinds that have one.",
    )(function)


def open_store(fleet: Path) -> FolderStore:
    """Return the store of a local fleet. Raises UnknownName where there is none."""
    root = fleet / "store"
    if not root.is_dir():
        raise UnknownName(Reason.NOT_FOUND, "no fleet here", where=str(fleet), fix="start one with `blurfleet up`")
    return FolderStore(root)
