"""The routing file: one per node, replaced atomically, read by the gateway at the start of every request."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from blurfleet.api.base import Model, Precision
from blurfleet.api.contract import ContractSpec
from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet.store.atomic import write_atomic

ROUTING_FILE = "routing.json"


class RoutedEngine(Model):
    """One loaded engine: its Triton model name, digest and precision."""

    engine: str
    digest: str
    precision: Precision
    set: str = ""


class Route(Model):
    """One alias: which engine answers now, which stands by, and the contract that its tensors must meet.

    `model_id` is the network's, empty while it is not known: it goes into logs. A `drained` node wants no new clients.
    What a newer agent adds is ignored.
    """

    model_config = ConfigDict(extra="ignore")

    alias: str
    epoch: int = Field(ge=0)
    serving: Literal["Primary", "Fallback"]
    primary: RoutedEngine
    fallback: RoutedEngine | None = None
    contract: ContractSpec = ContractSpec()
    contract_hash: str = ""
    model_id: str = ""
    drained: bool = False

    @property
    def active(self) -> RoutedEngine:
        """Return the engine that answers now."""
        return self.fallback if self.serving == "Fallback" and self.fallback is not None else self.primary


class RoutingTable(Model):
    """All aliases of the node."""

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[1] = 1
    simulated: bool = False
    models: dict[str, Route] = Field(default_factory=dict)

    def with_route(self, route: Route) -> RoutingTable:
        """Return a copy in which `route` stands for its alias."""
        return self.model_copy(update={"models": {**self.models, route.alias: route}})


def read_routing(path: Path) -> RoutingTable:
    """Return the table in `path`; an absent file is an empty table. Raises NodeError where it is unreadable."""
    try:
        return RoutingTable.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return RoutingTable()
    except (OSError, ValidationError) as error:
        raise NodeError(
            Reason.UNREADABLE_FILE, f"routing file cannot be read: {error}", where=str(path), fix="restart the agent"
        ) from error


def write_routing(path: Path, table: RoutingTable, *, sync: bool = False) -> None:
    """Replace the routing file. Raises OSError.

    Not synced by default: at a swap the journal was synced just before, and it is what recovery reads.
    """
    write_atomic(path, table.model_dump_json(by_alias=True).encode(), sync=sync)


class RoutingReader:
    """Reads the file again only when it was replaced (inode, mtime, size); safe for many threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cached: tuple[tuple[int, int, int], RoutingTable] | None = None

    def snapshot(self) -> RoutingTable:
        """Return the table as it is now. Raises NodeError where the file cannot be read."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return RoutingTable()
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        cached = self._cached
        if cached is not None and cached[0] == stamp:
            return cached[1]
        table = read_routing(self._path)
        self._cached = (stamp, table)
        return table
