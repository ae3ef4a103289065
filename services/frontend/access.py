"""One line for each request that is over: who asked what, and what became of it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

log = logging.getLogger(__name__)

Fields = dict[str, Any]

_current: ContextVar[Fields | None] = ContextVar("symphony_access", default=None)


def note(**fields: Any) -> None:
    """Add to the line of the request at hand, if there is one: ``model``, ``adapter``,
    ``prompt_tokens``, ``cached_tokens``, ``completion_tokens``, ``first_token_ms``, ``inputs``,
    ``error``.
    """
    if (line := _current.get()) is not None:
        line.update(fields)


@contextmanager
def access_line(fields: Fields) -> Iterator[Fields]:
    """Log one line at the end of this block, with `fields` and whatever was noted inside."""
    token = _current.set(fields)
    try:
        yield fields
    finally:
        _current.reset(token)
        log.info("access", extra=fields)
