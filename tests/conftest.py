"""What all tests share: logs as plain lines, tracebacks without locals."""

from __future__ import annotations

import structlog


def pytest_configure() -> None:
    """Keep structlog's default renderer from writing out every local of a traceback: it takes seconds."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, renderer])
