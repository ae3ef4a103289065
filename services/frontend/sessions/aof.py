"""Redis's append-only file keeps what was deleted until it is rewritten. Deletions ask for that."""

import asyncio
import logging
from typing import Any

from redis.exceptions import RedisError, ResponseError

from services.frontend.sessions.redis import Redis
from shared.runtime.tasks import end_if_cancelled

log = logging.getLogger(__name__)

POLL_S = 0.2
PAUSE_S = 10.0  # between the end of a rewrite and the beginning of the next
RETRY_S = 5.0


class AofRewriter:
    """Has the file rewritten in the background, once for all deletions that wait for it: at most
    one rewrite runs, and one follows for what was deleted meanwhile.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._wanted = asyncio.Event()
        self._is_refused = False
        self.num_rewritten = 0

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.aclose()

    def ask(self) -> None:
        """Ask for a rewrite: something was deleted. Returns at once."""
        self._wanted.set()

    async def run(self) -> None:
        """Rewrite whenever asked, for ever. While Redis is away, the request stays pending."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._rewrite()
            except ResponseError as error:
                if "in progress" in str(error):  # another client's, begun since the last look
                    self._wanted.set()
                    await asyncio.sleep(POLL_S)
                    continue
                if not self._is_refused:  # its administrator does not want it
                    log.warning(
                        "Redis does not rewrite its append-only file: what is deleted stays in it",
                        extra={"error": str(error)},
                    )
                self._is_refused = True
            except (RedisError, OSError):
                end_if_cancelled()
                self._wanted.set()
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(PAUSE_S)

    async def _rewrite(self) -> None:
        """One rewrite, begun after this call, to its end. Nothing if there is no file."""
        info = await self._idle()
        if not info.get("aof_enabled"):
            return
        await self._redis.execute_command("BGREWRITEAOF")
        await self._idle()
        self.num_rewritten += 1

    async def _idle(self) -> dict[str, Any]:
        """Redis's state of persistence, once nothing is being saved or about to be."""
        while True:
            info: dict[str, Any] = await self._redis.execute_command("INFO", "persistence")
            end_if_cancelled()
            busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")
            if not any(info.get(name) for name in busy):
                return info
            await asyncio.sleep(POLL_S)
