"""What the kvstore needs of Redis, and what it logs while that is away."""

import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

from shared.runtime.metrics import counter

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
REDIS_FAILURES = counter("kv_redis_failures_total", "Calls to Redis that failed")


class Redis(Protocol):
    """The commands that are used. Each may raise `RedisError` or `OSError`."""

    def get(self, name: str, /) -> Awaitable[Any]: ...

    def set(
        self,
        name: str,
        value: str | bytes | int,
        /,
        *,
        px: int | None = None,
        nx: bool = False,
    ) -> Awaitable[Any]: ...

    def hget(self, name: str, key: str, /) -> Awaitable[Any]: ...

    def smembers(self, name: str, /) -> Awaitable[Any]: ...

    def zcount(self, name: str, low: int, high: str, /) -> Awaitable[Any]: ...

    def time(self) -> Awaitable[Any]: ...

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Awaitable[Any]: ...

    def scan_iter(self, *, match: str, count: int) -> AsyncIterator[Any]: ...


class Presence:
    """Whether Redis answers, as far as is known. Its going and coming back are logged once each.

    Args:
        away: the log line for when it goes.
    """

    def __init__(self, away: str) -> None:
        self.is_up = True
        self._away = away

    def on_failed(self, error: Exception) -> None:
        """A command was not carried out."""
        REDIS_FAILURES.inc()
        if self.is_up:
            log.warning(self._away, extra={"error": str(error)})
        self.is_up = False

    def on_answered(self) -> None:
        """It answers."""
        if not self.is_up:
            log.info("Redis is back")
        self.is_up = True
