"""`blurfleet contract`: show, hash, compare, apply and diagnose preprocessing contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from blurfleet.check import CheckReport, Finding, Severity, dumps, refused
from blurfleet.contract import contract_diff, contract_hash
from blurfleet.errors import BlurfleetError
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet_cli.commands.contract_diagnose import diagnose
from blurfleet_cli.commands.contract_files import (
    as_json_option,
    bytes_in,
    contract_option,
    finish,
    save_tensor,
    size_option,
    spec_in,
)


@click.group()
def contract() -> None:
    """Show, hash, compare and apply preprocessing contracts, and say what is wrong with a tensor.

    Example: blurfleet contract apply photo.jpg -o tensor.npy --json
    """


@contract.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@size_option
@as_json_option
def show(file: Path | None, size: int | None, as_json: bool) -> None:
    """Print a contract (the default one without FILE).

    Example: blurfleet contract show --size 160
    """
    wire = spec_in(file, size).wire()
    click.echo(dumps(wire) if as_json else yaml.safe_dump(wire, sort_keys=False).rstrip())


@contract.command("hash")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@size_option
@as_json_option
def hash_(file: Path | None, size: int | None, as_json: bool) -> None:
    """Print the hash that clients send in x-blurfleet-contract.

    Example: blurfleet contract hash contract.yaml
    """
    digest = contract_hash(spec_in(file, size))
    click.echo(dumps({"contract_hash": digest}) if as_json else digest)


@contract.command()
@click.argument("left", type=click.Path(path_type=Path))
@click.argument("right", type=click.Path(path_type=Path))
@as_json_option
def diff(left: Path, right: Path, as_json: bool) -> None:
    """Print what two contracts disagree on; exit code 1 where they differ.

    Example: blurfleet contract diff old.yaml new.yaml
    """
    changes = contract_diff(spec_in(left, None), spec_in(right, None))
    findings = tuple(
        Finding(
            severity=Severity.ERROR,
            reason=Reason.CONTRACT_CHANGED,
            where=change.field,
            message=f"{change.left} became {change.right}",
        )
        for change in changes
    )
    finish(CheckReport(path=str(right), findings=findings), as_json)


@contract.command("apply")
@click.argument("image", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the tensor here (.npy, float32).")
@contract_option
@size_option
@as_json_option
def apply_(image: Path, output: Path | None, contract_file: Path | None, size: int | None, as_json: bool) -> None:
    """Turn a picture into the tensor that the engine sees, or say why the contract refuses it.

    Example: blurfleet contract apply photo.jpg -o tensor.npy --json
    """
    spec = spec_in(contract_file, size)
    facts: dict[str, Any] = {"contract_hash": contract_hash(spec)}
    try:
        decoded = decode(bytes_in(image), spec)
        facts |= {
            "decoded_size": decoded.decoded_size,
            "orientation_applied": decoded.orientation_applied,
            "source_mode": decoded.source_mode,
        }
        tensor = to_tensor(decoded, spec)
        facts |= {"shape": tensor.shape, "dtype": str(tensor.dtype)}
        if output is not None:
            save_tensor(output, tensor)
            facts["output"] = str(output)
    except BlurfleetError as error:
        finish(refused(str(image), error, facts), as_json)
    finish(CheckReport(path=str(image), facts=facts), as_json)


contract.add_command(diagnose)
