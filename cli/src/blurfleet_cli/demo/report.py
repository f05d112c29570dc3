"""`summary.json` and `report.html`: what happened, with figures and pictures; the page needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from blurfleet.check import dumps
from blurfleet.store.atomic import write_atomic
from blurfleet_cli.demo.stage import Act

STORY = {
    "baseline": "The FP32 set goes live on all nodes.",
    "naive-fp16": "The whole graph in FP16 drifts: the golden gate refuses it on both classes, and it is never served.",
    "mixed": "Mixed-precision engines, one per class, pass the gate, are shadowed, and go wave by wave.",
    "live-only": "An engine that is right on every golden frame goes all zero when the picture gets brighter.",
    "silent-int8": "An INT8 engine, forced past the gate by a policy that only warns there, is caught on live frames.",
    "power-cut": "kill -9 of agent and Triton on the tripped node: it comes back serving what it served.",
}


def summary(acts: list[Act], *, seconds: float, figures: Mapping[str, Any], trouble: str = "") -> dict[str, Any]:
    """Return the document of `summary.json`: ok, simulated, acts, figures."""
    held = all(p.held for a in acts for p in a.promises)
    return {
        "schemaVersion": 1,
        "ok": held and not trouble and {a.name for a in acts} == set(STORY),
        "simulated": True,
        "simulation": "real Triton on CPU; FP16 is emulated by explicit casts; nothing here was run on a GPU",
        "trouble": trouble,
        "seconds": round(seconds, 1),
        "figures": dict(figures),
        "acts": [asdict(a) for a in acts],
    }


def write(out: Path, document: Mapping[str, Any]) -> None:
    """Write `summary.json` and `report.html` into `out`."""
    write_atomic(out / "summary.json", dumps(document).encode())
    template = resources.files("blurfleet_cli.demo").joinpath("report.html.j2").read_text()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["picture"] = lambda name: _inline(out / name)
    page = environment.from_string(template).render(document=document, story=STORY)
    write_atomic(out / "report.html", page.encode())


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
