"""Files and answers that the commands of `blurfleet contract` share: contracts, pictures, tensors, reports."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import yaml
from pydantic import ValidationError

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, contract_at
from blurfleet.api.kinds import invalid
from blurfleet.check import CheckReport, dumps
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet.store.atomic import write_atomic

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
contract_option = click.option(
    "--contract", "contract_file", type=click.Path(path_type=Path), help="A contract as YAML; the default without it."
)
size_option = click.option("--size", type=click.IntRange(1, 16384), help="Fix both axes at this many pixels.")


def bytes_in(path: Path) -> bytes:
    """Return the file's bytes. Raises InvalidInput (MissingFile, UnreadableFile)."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidInput(Reason.MISSING_FILE, "there is no such file", where=str(path)) from error
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, str(error.strerror), where=str(path)) from error


def spec_in(path: Path | None, size: int | None) -> ContractSpec:
    """Return the contract in a YAML file: a bare spec, or a PreprocessContract object; the default one without a file.

    Raises InvalidInput (MissingFile, UnreadableFile, ContractInvalid).
    """
    spec = DEFAULT_CONTRACT
    if path is not None:
        try:
            loaded = yaml.safe_load(bytes_in(path))
            if isinstance(loaded, dict) and loaded.get("kind") == "PreprocessContract":
                loaded = loaded.get("spec")
            spec = ContractSpec.model_validate(loaded)
        except (yaml.YAMLError, ValidationError) as error:
            said = invalid(error, "").message if isinstance(error, ValidationError) else " ".join(str(error).split())
            raise InvalidInput(
                Reason.CONTRACT_INVALID, said, where=str(path), fix="`blurfleet contract show` prints a right one"
            ) from error
    return spec if size is None else contract_at(size, spec)


def save_tensor(path: Path, tensor: Any) -> None:
    """Write `tensor` as .npy, whole or not at all. Raises InvalidInput UnreadableFile."""
    buffer = io.BytesIO()
    np.save(buffer, tensor, allow_pickle=False)
    try:
        write_atomic(path, buffer.getvalue(), sync=False)
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, f"cannot be written: {error.strerror}", where=str(path)) from error


def finish(report: CheckReport, as_json: bool) -> None:
    """Print a report and end with its exit code."""
    if as_json:
        click.echo(dumps(report.as_dict()))
    else:
        for finding in report.findings:
            click.echo(f"{finding.severity}: {finding.where}: {finding.message} [{finding.reason}]")
        for name, value in report.facts.items():
            click.echo(f"{name}: {value if isinstance(value, str) else dumps(value, indent=None)}")
        click.echo("ok" if report.ok else "refused")
    raise SystemExit(0 if report.ok else 1)


def tensor_in(path: Path) -> npt.NDArray[Any]:
    """Return the array of numbers in a .npy file. Raises InvalidInput (MissingFile, UnreadableFile, Unparseable)."""
    try:
        array = np.load(io.BytesIO(bytes_in(path)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        # numpy takes every other file for a pickle and says how to load it unsafely: its first sentence is enough.
        cause, fix = str(error).split(". ")[0], "write it with numpy.save"
        raise InvalidInput(Reason.UNPARSEABLE, f"not a .npy file: {cause}", where=str(path), fix=fix) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise InvalidInput(
            Reason.UNPARSEABLE, "not an array of numbers", where=str(path), fix="write it with numpy.save"
        )
    return array
