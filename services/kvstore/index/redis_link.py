"""How the kvstore reaches Redis, and what it says while that is away."""

import logging

from services.kvstore.telemetry import REDIS_FAILURES
from shared.access import RedisAccess
from shared.redis_client import RedisClient

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0


def connect(url: str, access: RedisAccess | None) -> RedisClient:
    """A client that connects at its first command."""
    return RedisClient(url, access, timeout_s=TIMEOUT_S)


class Presence:
    """Whether Redis answers, as far as is known. Its going and coming back are each told once.

    Args:
        away: what to say when it goes.
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
