"""What all tests share: logs as plain lines, tracebacks without locals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import structlog

from blurfleet.deadline import came_true


def pytest_configure() -> None:
    """Keep structlog's default renderer from writing out every local of a traceback: it takes seconds."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, renderer])


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Wait for a condition, at most `seconds`; the test fails, saying `what`, when it does not come true."""

    def wait(holds: Callable[[], bool], seconds: float = 60, what: str = "it", every: float = 0.05) -> None:
        assert came_true(holds, seconds, poll_s=every), f"{what} did not come true in {seconds} s"

    return wait
