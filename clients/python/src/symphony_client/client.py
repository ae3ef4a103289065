"""Clients of a deployment: one for threads, one for asyncio. Both ask by the same functions."""

import asyncio
import threading
from typing import Self

from symphony_client.announcer import Announcer
from symphony_client.core import calls
from symphony_client.foresight import Foresight
from symphony_client.messages import Advisory, AdvisoryState, Forgotten, Session
from symphony_client.settings import TIMEOUT_S, Settings
from symphony_client.transports.base import AsyncTransport, Transport
from symphony_client.transports.http import AsyncHttpTransport, HttpTransport
from symphony_client.workflow import Workflow


class _Announcing:
    """What both clients have besides asking: hints that do not block.

    Args:
        transport: whose deployment the hints go to.
        announcer: another's, which is not closed here; None: one of its own, from the first hint.
    """

    def __init__(
        self, transport: Transport | AsyncTransport, announcer: Announcer | None = None
    ) -> None:
        self._hinted = transport
        self._given = announcer
        self._own: Announcer | None = None
        self._foresight: Foresight | None = None
        self._starting = threading.Lock()

    @property
    def announcer(self) -> Announcer:
        """Sends hints in the background."""
        with self._starting:
            if self._given is not None:
                return self._given
            if self._own is None:
                self._own = Announcer(self._hinted.for_hints())
            return self._own

    def workflow(
        self,
        workflow_id: str,
        application: str | None = None,
        *,
        model: str | None = None,
        priority: int | None = None,
    ) -> Workflow:
        """One run of an application, whose agents' turns are to be announced."""
        announcer = self.announcer
        with self._starting:
            if self._foresight is None:
                self._foresight = Foresight(announcer)
            foresight = self._foresight
        return Workflow(
            workflow_id, foresight, application=application, model=model, priority=priority
        )

    def _close_announcer(self) -> None:
        if self._own is not None:
            self._own.close()


class SymphonyClient(_Announcing):
    """For threads, any number of which may share it. Close it, or use it as a context manager.

    Args:
        base_url, api_key: None: as `Settings.read` finds them.
        timeout_s: how long a question may take.
        transport: instead of those three; it is closed with the client.
        announcer: see `announcer`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: Transport | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        self._transport = transport or HttpTransport(Settings.read(base_url, api_key, timeout_s))
        super().__init__(self._transport, announcer)

    def advise(
        self,
        session_id: str,
        *,
        model: str | None = None,
        expected_arrival: float | None = None,
        agent: str | None = None,
        workflow_id: str | None = None,
        ordered: bool | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
    ) -> AdvisoryState:
        """Say that a session's next turn is coming, and get what is done about it. See `Advisory`.

        Raises:
            SymphonyError: the deployment refused, or did not answer.
        """
        advisory = Advisory(
            session_id=session_id, model=model, expected_arrival=expected_arrival, agent=agent,
            workflow_id=workflow_id, ordered=ordered, priority=priority, ttl_ms=ttl_ms,
        )  # fmt: skip
        return self._transport.send(calls.advise(advisory))

    def advisory(self, session_id: str) -> AdvisoryState:
        """How a session's advisory stands.

        Raises:
            NotFound: there is none, or it was over long ago.
        """
        return self._transport.send(calls.advisory(session_id))

    def invalidate(self, session_id: str) -> AdvisoryState:
        """The turn is not coming after all.

        Raises:
            NotFound: none was announced.
        """
        return self._transport.send(calls.invalidate(session_id))

    def session(self, session_id: str) -> Session:
        """What is remembered of a session.

        Raises:
            NotFound: nothing.
        """
        return self._transport.send(calls.session(session_id))

    def forget(self, session_id: str) -> Forgotten:
        """Forget a session and its KV.

        Raises:
            NotFound: it is not known.
            Unavailable: not everybody has said that it is done; ask again.
        """
        return self._transport.send(calls.forget(session_id))

    def close(self) -> None:
        """Let go of everything; hints that wait are sent, for a second at most."""
        self._close_announcer()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSymphonyClient(_Announcing):
    """For asyncio: as `SymphonyClient`, but for the `await`. Workflows are the same ones, since
    they never wait.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: AsyncTransport | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        self._transport = transport or AsyncHttpTransport(
            Settings.read(base_url, api_key, timeout_s)
        )
        super().__init__(self._transport, announcer)

    async def advise(
        self,
        session_id: str,
        *,
        model: str | None = None,
        expected_arrival: float | None = None,
        agent: str | None = None,
        workflow_id: str | None = None,
        ordered: bool | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
    ) -> AdvisoryState:
        """See `SymphonyClient.advise`."""
        advisory = Advisory(
            session_id=session_id, model=model, expected_arrival=expected_arrival, agent=agent,
            workflow_id=workflow_id, ordered=ordered, priority=priority, ttl_ms=ttl_ms,
        )  # fmt: skip
        return await self._transport.send(calls.advise(advisory))

    async def advisory(self, session_id: str) -> AdvisoryState:
        """See `SymphonyClient.advisory`."""
        return await self._transport.send(calls.advisory(session_id))

    async def invalidate(self, session_id: str) -> AdvisoryState:
        """See `SymphonyClient.invalidate`."""
        return await self._transport.send(calls.invalidate(session_id))

    async def session(self, session_id: str) -> Session:
        """See `SymphonyClient.session`."""
        return await self._transport.send(calls.session(session_id))

    async def forget(self, session_id: str) -> Forgotten:
        """See `SymphonyClient.forget`."""
        return await self._transport.send(calls.forget(session_id))

    async def close(self) -> None:
        """See `SymphonyClient.close`."""
        await asyncio.to_thread(self._close_announcer)
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
