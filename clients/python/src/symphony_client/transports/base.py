"""The one interface of transports, in its two forms: for threads, and for asyncio."""

from typing import Protocol, TypeVar

from symphony_client.core.calls import Call

T = TypeVar("T")


class AsyncTransport(Protocol):
    """Carries questions of one event loop. It connects when it is first asked something."""

    async def send(self, call: Call[T]) -> T:
        """Ask, and wait for the answer.

        Raises:
            SymphonyError: the server refused, or no answer came in time.
        """

    async def close(self) -> None:
        """Let go of connections. It may be called again; nothing is sent after it."""

    def for_hints(self) -> "AsyncTransport":
        """Another one with the same target and rights, for an `Announcer`'s own loop."""


class Transport(Protocol):
    """Carries questions of any thread."""

    def send(self, call: Call[T]) -> T:
        """As of `AsyncTransport`."""

    def close(self) -> None:
        """As of `AsyncTransport`."""

    def for_hints(self) -> AsyncTransport:
        """As of `AsyncTransport`."""
