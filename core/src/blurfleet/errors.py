"""Every error that blurfleet raises on purpose.

* BlurfleetError
  x InvalidInput        a file, argument or object that a person gave is wrong
    + InvalidSpec       an object's spec breaks a rule of its kind
    + ContractRefused   bytes or a tensor that the preprocessing contract refuses
    + UnknownName       a reference that names nothing
  x ArtifactRefused     an artifact's bytes, size or record are not what was promised
  x StoreError          desired or observed state could not be read or written
    + StoreConflict     somebody else wrote first; read again and retry
    + AdmissionRefused  a cross-object rule refuses the write (quarantine, ownership)
  x EngineError         an engine could not be built, loaded or run
    + EngineTimeout     the serving process did not answer in time
  x RequestEnded        whoever asked no longer waits: a deadline has passed, or they hung up
  x NodeError           a node's own files or processes are in a state that stops it

Each carries a machine-readable `reason`, what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from blurfleet.reasons import Reason


class BlurfleetError(Exception):
    """Base of all errors raised on purpose.

    `reason` is one of the closed set, `message` says what is wrong, `where` names the file, object or field,
    `fix` says what a person can do.
    """

    def __init__(self, reason: Reason, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" ({self.fix})" if self.fix else ""
        return f"{place}{self.message} [{self.reason}]{remedy}"


class InvalidInput(BlurfleetError):
    """A file, argument or object given by a person is wrong."""


class InvalidSpec(InvalidInput):
    """An object's spec breaks a rule of its kind."""


class ContractRefused(InvalidInput):
    """Bytes or a tensor that the preprocessing contract refuses."""


class UnknownName(InvalidInput):
    """A reference that names nothing."""


class ArtifactRefused(BlurfleetError):
    """An artifact's bytes, size or record are not what was promised."""


class StoreError(BlurfleetError):
    """Desired or observed state could not be read or written."""


class StoreConflict(StoreError):
    """Somebody else wrote first."""


class AdmissionRefused(StoreError):
    """A cross-object rule refuses the write."""


class EngineError(BlurfleetError):
    """An engine could not be built, loaded or run."""


class EngineTimeout(EngineError):
    """The serving process did not answer in time."""


class RequestEnded(BlurfleetError):
    """Whoever asked no longer waits for the answer."""


class NodeError(BlurfleetError):
    """A node's own files or processes are in a state that stops it."""
