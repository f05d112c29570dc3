"""One frame of a stream: what `/v1/matte` and `/v1/blur` would answer, in one message, steadied where that is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blurfleet.pixels import Pixels
from blurfleet.serving.streaming import FrameAnswer, Hello, Output, Part, packed
from blurfleet_preprocess import picture
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.compositing.scales import Check
from blurfleet_preprocess.dataplane import Answer, Caller, Gateway
from blurfleet_preprocess.exchange import NPY, npy
from blurfleet_preprocess.room import DEPTH_BYTES_PER_PIXEL
from blurfleet_preprocess.steadying import Past, Sight, Steady, steadied


@dataclass(frozen=True, kw_only=True)
class Worked:
    """An answered frame: its message, how steady its matte was, and what the next one is compared with."""

    message: bytes
    steady: Steady
    past: Past


class FrameWork:
    """Answers the frames of one stream, one after the other, on worker threads."""

    def __init__(self, gateway: Gateway, hello: Hello, look: Look) -> None:
        self._gateway = gateway
        self._hello = hello
        self._look = look

    def answer(self, caller: Caller, data: bytes, past: Past | None, dropped: tuple[int, int] | None) -> Worked:
        """Return the answer to one encoded picture. Raises what `Gateway.picture` raises, and InvalidInput."""
        if self._look.mode == "depth":
            caller.room.need_more(DEPTH_BYTES_PER_PIXEL)
        form = self._hello.format
        answer = self._gateway.picture(
            caller, data, lambda header: None if form == "npy" else picture.check_sides(header, form)
        )
        assert answer.tensor is not None
        made_by = f"{answer.engine.engine} {answer.route.epoch} {answer.contract_hash}"
        sight = Sight(matte=answer.matte, tensor=answer.tensor, spec=answer.route.contract, made_by=made_by)
        with answer.stages.timed("steady"):
            now, steady = steadied(past, sight, self._hello.smoothing)
        answer = replace(answer, matte=steady.matte)
        rgb = None if form == "npy" else answer.whole()
        parts = tuple(self._part(answer, output, rgb, caller.life.check) for output in _outputs(self._hello))
        header = _header(answer, steady, dropped, tuple(part for part, _ in parts))
        return Worked(message=packed(header, tuple(data for _, data in parts)), steady=steady, past=now)

    def _part(self, answer: Answer, output: Output, rgb: Pixels | None, check: Check) -> tuple[Part, bytes]:
        form, spec = self._hello.format, answer.route.contract
        if rgb is None or form == "npy":
            data = npy(answer.matte)
            return Part(output=output, media_type=NPY, bytes=len(data)), data
        with answer.stages.timed("composite"):
            if output == "matte":
                shown = picture.as_levels(picture.fine_matte(rgb, answer.matte, spec, check))
            else:
                shown = picture.composed(rgb, answer.matte, spec, self._look, check)
        with answer.stages.timed("encode"):
            data, media = picture.encode(shown, form), picture.MEDIA_TYPES[form]
        return Part(output=output, media_type=media, bytes=len(data)), data


def _outputs(hello: Hello) -> tuple[Output, ...]:
    return ("matte", "blur") if hello.output == "both" else (hello.output,)


def _header(answer: Answer, steady: Steady, dropped: tuple[int, int] | None, parts: tuple[Part, ...]) -> FrameAnswer:
    return FrameAnswer(
        id=answer.ticket.frame_id,
        dropped=dropped,
        engine=answer.engine.engine,
        digest=answer.engine.digest,
        precision=answer.engine.precision,
        role=answer.role,
        epoch=answer.route.epoch,
        contract=answer.contract_hash,
        trace=answer.trace_id,
        simulated=answer.simulated,
        withheld="" if answer.withheld is None else answer.withheld.value,
        unchecked="" if answer.unchecked is None else answer.unchecked.value,
        scene_cut=steady.cut,
        flicker=steady.flicker,
        engine_flicker=steady.engine_flicker,
        stages={name: round(1000 * seconds, 2) for name, seconds in answer.stages.seconds.items()},
        parts=parts,
    )
