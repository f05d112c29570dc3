"""`blurfleet demo`: the whole story, printed as it happens."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from blurfleet.cache import cache_dir
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.demo import report
from blurfleet_cli.demo.story import tell_story
from blurfleet_forge.build import BuildResult, build_all

RECIPE = Path("model_repo/bokeh-u2netp/recipe.yaml")


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo"), show_default=True,
    help="Folder of report and fleet; engines go beside it.",
)  # fmt: skip
@click.option(
    "--recipe", type=click.Path(path_type=Path, dir_okay=False), default=RECIPE, show_default=True,
    help="What the engines are built from.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the fleet running afterwards (stop it with `blurfleet down`).")
def demo(out: Path, recipe: Path, keep: bool) -> None:
    """Run the whole story on three real nodes; leave report.html and summary.json in --out.

    Run it in blurfleet's checkout. Exit code 1 if any promise failed.

    Example: blurfleet demo && xdg-open out/demo/report.html
    """
    if not recipe.is_file():
        fix = "run this in blurfleet's checkout, or name --recipe"
        raise InvalidInput(Reason.MISSING_FILE, "no recipe here", where=str(recipe), fix=fix)
    console = Console(highlight=False)
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with _progress(console) as bar:
        task = bar.add_task("Triton environment (first time: a 150 MB download)", total=None)
        ensure_environment(cache_dir(), progress=lambda text: bar.update(task, description=f"Triton: {text}"))
    built = _build(recipe, out.parent / "engines", console)
    document = tell_story(built, out, console.print, keep=keep)
    document["seconds"] = round(time.monotonic() - started, 1)
    report.write(out, document)
    verdict = "[green]every promise held[/green]" if document["ok"] else "[red]a promise was broken[/red]"
    console.print(f"{verdict} in {document['seconds']} s (simulated on CPU): {out / 'report.html'}")
    sys.exit(0 if document["ok"] else 1)


def _build(recipe: Path, out: Path, console: Console) -> BuildResult:
    with _progress(console) as bar:
        task = bar.add_task("engines", total=None)

        def step(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        return build_all(recipe, out, progress=step)


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
