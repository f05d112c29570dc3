"""What a client remembers of its gateway."""

from __future__ import annotations

from dataclasses import dataclass

from blurfleet.client.answers import ContractAnswer


@dataclass
class Known:
    """The contract that was served when it was last asked for."""

    contract: ContractAnswer | None = None

    def learn(self, answer: ContractAnswer) -> ContractAnswer:
        """Remember the contract, and return it."""
        self.contract = answer
        return answer

    def forget(self) -> None:
        """Ask again next time."""
        self.contract = None
