"""Logs of the long-running processes: one JSON object per line on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict

# Without locals: they may hold frames and keys, and writing out a whole world of objects takes a guard's seconds.
_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def log_json(
    *, service: str, level: int = logging.INFO, also: Callable[[], Mapping[str, str]] = dict, **bound: str
) -> None:
    """Make every log line of this process JSON with `service` and `bound` (e.g. node) in it. Call once, in main.

    `also` is asked for every line: for what changes while the process runs, from whichever thread. It must not raise.
    """

    def name_process(_: Any, __: str, event: EventDict) -> EventDict:
        return {**event, "service": service, **bound, **also()}

    structlog.configure(
        processors=[
            name_process,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write a line: what libraries say goes to the same stream from other threads.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def log_libraries(level: int = logging.WARNING, *, quiet: Sequence[str] = ()) -> None:
    """Make what libraries say by `logging`, from `level` up, lines like our own. Call after `log_json`, in main.

    The loggers named in `quiet` say nothing.
    """
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *structlog.get_config()["processors"]],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])
    for name in quiet:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
