"""Whether flips are proven on this Triton, and when to try again."""

from __future__ import annotations

from dataclasses import dataclass

from blurfleet_agent.aliases import Proof

AGAIN_S = 5.0
ATTEMPTS = 3  # a flip that could not be tried (a busy machine) says less than one that lost a request


@dataclass(frozen=True, kw_only=True)
class FlipProof:
    """`proven` is None until a flip was tried on this Triton; the next try is due at `again_at` (seconds)."""

    proven: bool | None = None
    again_at: float = 0.0
    errors: int = 0

    def tried(self, proof: Proof, now: float) -> FlipProof:
        """Return what holds after a flip was tried under traffic."""
        return FlipProof(proven=proof.passed, again_at=now + AGAIN_S)

    def failed(self, now: float) -> FlipProof:
        """Return what holds after a flip that could not even be tried."""
        errors = self.errors + 1
        return FlipProof(proven=None if errors < ATTEMPTS else False, again_at=now + AGAIN_S, errors=errors)
