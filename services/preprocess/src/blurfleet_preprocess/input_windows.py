"""Ready tensors over time: one window a stream, so that a client's wrong scale is told from a hazy scene."""

from __future__ import annotations

import threading
from collections import OrderedDict

from blurfleet.api.contract import ContractSpec
from blurfleet.diagnosis.admission import WINDOW, InputVerdict, InputWindow, Standing, judge_tensor
from blurfleet.errors import ContractRefused
from blurfleet.pixels import Tensor
from blurfleet_preprocess.streams import MAX_STREAMS, Ticket


class InputWindows:
    """Judges ready tensors by themselves and within their streams. Safe for many threads; the oldest is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], InputWindow] = OrderedDict()

    def judge(self, ticket: Ticket, tensor: Tensor, spec: ContractSpec, sender: str = "") -> InputVerdict:
        """Return what `tensor`, of the contract's shape, says of its making.

        `sender` tells those apart who share one stream since they name none.

        Raises ContractRefused: NonFiniteInput, ImpossibleInput (no pixel gives such values), SuspectInput (this and the
        frames before it in its stream all fit another scale).
        """
        verdict = judge_tensor(tensor, spec)
        with self._lock:
            key = (ticket.stream, sender)
            window, refused = self._known.pop(key, InputWindow()).after(ticket.frame_id, verdict)
            self._known[key] = window
            if len(self._known) > MAX_STREAMS:
                self._known.popitem(last=False)
        if not refused:
            return verdict
        assert verdict.reason is not None
        so_far = f"; so did the {WINDOW - 1} frames before it" if verdict.standing is Standing.SUSPECT else ""
        raise ContractRefused(
            verdict.reason,
            verdict.message + so_far,
            where="tensor",
            fix="prepare it by GET /v1/contract; POST /v1/selftest says what differs",
        )
