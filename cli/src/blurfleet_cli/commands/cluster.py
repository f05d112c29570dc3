"""`blurfleet cluster up` and `down`: a real Kubernetes API server on loopback, without containers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from blurfleet.check import dumps
from blurfleet_cli.cluster.ground import install, require_checkout
from blurfleet_cli.cluster.plane import ControlPlane

DEFAULT_CLUSTER = Path("out/cluster")

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_CLUSTER,
    envvar="BLURFLEET_CLUSTER",
    show_default=True,
    help="Folder of the control plane.",
)


@click.group()
def cluster() -> None:
    """Run etcd, kube-apiserver and kube-controller-manager here, with blurfleet's kinds, roles and policies.

    Example: blurfleet cluster up && kubectl --kubeconfig out/cluster/kubeconfig get er,ne,es,qr,eq
    """


@cluster.command()
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print address, kubeconfig and processes as JSON.")
def up(folder: Path, as_json: bool) -> None:
    """Start the control plane; what already runs is kept. Run it in blurfleet's checkout.

    The first start on a machine builds the programs, which takes some minutes; later ones take seconds.

    Example: blurfleet cluster up
    """
    require_checkout()
    plane = ControlPlane(folder, tell=lambda text: click.echo(text, err=True))
    plane.start()
    with contextlib.closing(plane.admin()) as api:
        install(api, tell=lambda text: click.echo(text, err=True))
    config = os.path.relpath(plane.kubeconfig)
    if as_json:
        click.echo(dumps({"url": plane.url, "kubeconfig": config, "processes": plane.running()}))
        return
    click.echo(f"{plane.url}; try: kubectl --kubeconfig {config} apply -f examples/")


@cluster.command()
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print whether something was stopped as JSON.")
def down(folder: Path, as_json: bool) -> None:
    """Stop the control plane and remove what it stored.

    Example: blurfleet cluster down
    """
    stopped = ControlPlane(folder).stop()
    if as_json:
        click.echo(dumps({"stopped": stopped}))
        return
    click.echo("stopped" if stopped else "was not running", err=True)
