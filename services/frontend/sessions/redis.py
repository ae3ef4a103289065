"""What the frontend needs of a client of Redis, and the real one."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from shared.runtime.access import RedisAccess
from shared.runtime.redis_client import RedisClient


class Pipeline(Protocol):
    """Commands that are sent together."""

    def execute_command(self, *command: str | bytes | int) -> Any:
        """Add a command."""
        ...

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Their answers.

        Args:
            raise_on_error: if not, the error of one that fails is in place of its answer.
        """
        ...


class Redis(Protocol):
    """A client that connects at its first command. Errors are redis-py's."""

    async def execute_command(self, *command: str | bytes | int) -> Any:
        """A command's answer."""
        ...

    def pipeline(self, transaction: bool = True) -> AbstractAsyncContextManager[Pipeline]:
        """A pipeline, which sends nothing until `Pipeline.execute`."""
        ...

    async def aclose(self) -> None:
        """Disconnect. Commands under way fail, and so does every later one."""
        ...


OpenRedis = Callable[[float], Redis]
"""Makes a client that waits for so many seconds at most: to connect, and for an answer."""


def redis_at(url: str, access: RedisAccess | None = None) -> OpenRedis:
    """Makes clients of the server at `url`."""
    return lambda timeout_s: cast(Redis, RedisClient(url, access, timeout_s=timeout_s))
