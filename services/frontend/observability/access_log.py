"""The current request: its tenant, and one line in the log when it is over."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from shared.ids import DEFAULT_TENANT, TenantId

log = logging.getLogger(__name__)

Fields = dict[str, Any]

_current: ContextVar[Fields | None] = ContextVar("symphony_access", default=None)
_tenant: ContextVar[TenantId] = ContextVar("symphony_tenant", default=DEFAULT_TENANT)


@contextmanager
def serving(tenant: TenantId) -> Iterator[None]:
    """Set the tenant for this block and the tasks that it starts."""
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


def served_tenant() -> TenantId:
    """The tenant of the current request."""
    return _tenant.get()


def note(**fields: Any) -> None:
    """Add to the line of the current request, if there is one: ``model``, ``adapter``,
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
