"""`blurfleet contract`: show, hash, compare and apply preprocessing contracts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from pydantic import ValidationError

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, contract_at
from blurfleet.check import CheckReport, Finding, Severity, dumps, refused
from blurfleet.contract import contract_diff, contract_hash
from blurfleet.errors import BlurfleetError, InvalidInput
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet.store.atomic import write_atomic

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
_contract = click.option(
    "--contract", "contract_file", type=click.Path(path_type=Path), help="A contract as YAML; the default without it."
)
_size = click.option("--size", type=click.IntRange(1, 16384), help="Fix both axes at this many pixels.")


@click.group()
def contract() -> None:
    """Show, hash, compare and apply preprocessing contracts.

    Example: blurfleet contract apply photo.jpg -o tensor.npy --json
    """


@contract.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@_size
@_as_json
def show(file: Path | None, size: int | None, as_json: bool) -> None:
    """Print a contract (the default one without FILE).

    Example: blurfleet contract show --size 160
    """
    wire = _spec(file, size).wire()
    click.echo(dumps(wire) if as_json else yaml.safe_dump(wire, sort_keys=False).rstrip())


@contract.command("hash")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@_size
@_as_json
def hash_(file: Path | None, size: int | None, as_json: bool) -> None:
    """Print the hash that clients send in x-blurfleet-contract.

    Example: blurfleet contract hash contract.yaml
    """
    digest = contract_hash(_spec(file, size))
    click.echo(dumps({"contract_hash": digest}) if as_json else digest)


@contract.command()
@click.argument("left", type=click.Path(path_type=Path))
@click.argument("right", type=click.Path(path_type=Path))
@_as_json
def diff(left: Path, right: Path, as_json: bool) -> None:
    """Print what two contracts disagree on; exit code 1 where they differ.

    Example: blurfleet contract diff old.yaml new.yaml
    """
    changes = contract_diff(_spec(left, None), _spec(right, None))
    findings = tuple(
        Finding(
            severity=Severity.ERROR,
            reason=Reason.CONTRACT_CHANGED,
            where=change.field,
            message=f"{change.left} became {change.right}",
        )
        for change in changes
    )
    _finish(CheckReport(path=str(right), findings=findings), as_json)


@contract.command("apply")
@click.argument("image", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the tensor here (.npy, float32).")
@_contract
@_size
@_as_json
def apply_(image: Path, output: Path | None, contract_file: Path | None, size: int | None, as_json: bool) -> None:
    """Turn a picture into the tensor that the engine sees, or say why the contract refuses it.

    Example: blurfleet contract apply photo.jpg -o tensor.npy --json
    """
    spec = _spec(contract_file, size)
    facts: dict[str, Any] = {"contract_hash": contract_hash(spec)}
    try:
        decoded = decode(_bytes(image), spec)
        facts |= {
            "decoded_size": decoded.decoded_size,
            "orientation_applied": decoded.orientation_applied,
            "source_mode": decoded.source_mode,
        }
        tensor = to_tensor(decoded.rgb, spec)
        facts |= {"shape": tensor.shape, "dtype": str(tensor.dtype)}
        if output is not None:
            _save(output, tensor)
            facts["output"] = str(output)
    except BlurfleetError as error:
        _finish(refused(str(image), error, facts), as_json)
    _finish(CheckReport(path=str(image), facts=facts), as_json)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidInput(Reason.MISSING_FILE, "there is no such file", where=str(path)) from error
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, str(error.strerror), where=str(path)) from error


def _spec(path: Path | None, size: int | None) -> ContractSpec:
    """Return the contract in a YAML file: a bare spec, or a PreprocessContract object."""
    spec = DEFAULT_CONTRACT
    if path is not None:
        try:
            loaded = yaml.safe_load(_bytes(path))
            if isinstance(loaded, dict) and loaded.get("kind") == "PreprocessContract":
                loaded = loaded.get("spec")
            spec = ContractSpec.model_validate(loaded)
        except (yaml.YAMLError, ValidationError) as error:
            raise InvalidInput(
                Reason.CONTRACT_INVALID, str(error), where=str(path), fix="see: contract show"
            ) from error
    return spec if size is None else contract_at(size, spec)


def _save(path: Path, tensor: Any) -> None:
    buffer = io.BytesIO()
    np.save(buffer, tensor, allow_pickle=False)
    try:
        write_atomic(path, buffer.getvalue(), sync=False)
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, f"cannot be written: {error.strerror}", where=str(path)) from error


def _finish(report: CheckReport, as_json: bool) -> None:
    """Print a report and end with its exit code."""
    if as_json:
        click.echo(dumps(report.as_dict()))
    else:
        for finding in report.findings:
            click.echo(f"{finding.severity}: {finding.where}: {finding.message} [{finding.reason}]")
        for name, value in report.facts.items():
            click.echo(f"{name}: {value}")
        click.echo("ok" if report.ok else "refused")
    raise SystemExit(0 if report.ok else 1)
