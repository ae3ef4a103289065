"""Structured logs: one JSON object a line on stderr, with the request and session at hand."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

_context: ContextVar[dict[str, str] | None] = ContextVar("symphony_log_context", default=None)
VALUE_CHARS_MAX = 1024  # of a field: it may be a stranger's
_STANDARD = set(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Add `fields` (``request_id``, ``session_id``, ``turn_id``) to every line logged inside."""
    token = _context.set({**(_context.get() or {}), **fields})
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `extra` fields become top-level keys."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._base = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._base,
            "logger": record.name,
            "message": record.getMessage(),
            **(_context.get() or {}),
        }
        line.update({k: _cut(v) for k, v in record.__dict__.items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def _cut(value: Any) -> Any:
    return value[:VALUE_CHARS_MAX] if isinstance(value, str) else value


def configure_logs(service: str, instance: str, level: str) -> None:
    """Send everything through the JSON formatter to stderr."""
    # What a line does not tell is not looked up (logging's documentation: Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service, instance))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
