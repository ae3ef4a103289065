"""The sending side of the bus: messages without a reply, and requests to one or to all servers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeoutError

from shared.bus.connection import ERROR_HEADER, MALFORMED, Connection
from shared.errors import MalformedMessage, NobodyListens, PeerUnavailable
from shared.runtime.tasks import end_if_cancelled, wait_set
from shared.wire.error_wire import error_from_wire
from shared.wire.messages import decode, encode, prepare
from shared.wire.subjects import Subject

Req = TypeVar("Req")
Rep = TypeVar("Rep")

ROOM_PATIENCE_S = 120.0  # how long a message waits for buffer space while disconnected
NO_RESPONDER_RETRY_S = 0.02
# nats-py can report no responders on a fresh connection although the responder subscribed and
# flushed.
NO_RESPONDER_GRACE_S = 1.0


class Sender(Connection):
    """A connection that sends messages and requests."""

    async def publish(self, subject: Subject[Req, Any], message: Req, *ids: str) -> None:
        """Send without a reply. While disconnected, messages wait in a bounded buffer; if that is
        full, the call waits.

        Raises:
            PeerUnavailable: the buffer stays full for `ROOM_PATIENCE_S`, or the message is larger
                than the server accepts.
        """
        await self.publish_raw(subject.name(*ids), encode(message))

    async def publish_raw(self, subject: str, payload: bytes) -> None:
        """Send bytes to a subject given by name: replies to a caller's inbox."""
        try:
            await self._client.publish(subject, payload)
        except OutboundBufferLimitError:
            await self._publish_when_back(subject, payload)
        except NatsError as error:
            raise PeerUnavailable(f"publish to {subject}: {error}") from None

    async def _publish_when_back(self, subject: str, payload: bytes) -> None:
        """Wait for buffer space: NATS is disconnected and the buffer is full."""
        try:
            async with asyncio.timeout(ROOM_PATIENCE_S):
                while True:
                    self._is_back.clear()
                    if not self._client.is_connected:
                        await self._is_back.wait()
                    with suppress(OutboundBufferLimitError):  # other messages may have filled it
                        await self._client.publish(subject, payload)
                        return
        except TimeoutError:
            raise PeerUnavailable(
                f"publish to {subject}: NATS is disconnected for {ROOM_PATIENCE_S:g} s"
            ) from None
        except NatsError as error:
            raise PeerUnavailable(f"publish to {subject}: {error}") from None

    async def request(
        self,
        subject: Subject[Req, Rep],
        message: Req,
        *ids: str,
        timeout_s: float = 5.0,
        grace_s: float = NO_RESPONDER_GRACE_S,
    ) -> Rep:
        """Send and wait for the typed reply, up to `grace_s` of it for a responder to subscribe.

        Raises:
            NobodyListens: the server has no subscription of a responder.
            PeerUnavailable: no reply in `timeout_s`.
            SymphonyError: the error that the responder replied with.
        """
        name = subject.name(*ids)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        give_up = loop.time() + min(timeout_s, grace_s)
        payload = encode(message)
        while True:
            try:
                reply = await self._client.request(
                    name, payload, timeout=max(deadline - loop.time(), 0.001)
                )
                break
            except NoRespondersError:
                if loop.time() >= give_up:
                    raise NobodyListens(f"no process serves {name}") from None
                await asyncio.sleep(NO_RESPONDER_RETRY_S)
            except (TimeoutError, NatsTimeoutError):
                raise PeerUnavailable(f"{name} did not answer within {timeout_s:g} s") from None
            except NatsError as error:
                raise PeerUnavailable(f"{name}: {error}") from None
            finally:
                end_if_cancelled()  # the client library may have swallowed it
        if reply.headers and ERROR_HEADER in reply.headers:
            raise error_from_wire(reply.data)
        return decode(subject.reply, reply.data)

    async def has_responder(
        self, subject: Subject[Req, Rep], message: Req, *ids: str, timeout_s: float = 1.0
    ) -> bool:
        """Send one request, without grace: False as soon as the server reports no responders, or
        after `timeout_s`.
        """
        try:
            await self._client.request(subject.name(*ids), encode(message), timeout=timeout_s)
        except (TimeoutError, NatsError):
            return False
        finally:
            end_if_cancelled()
        return True

    async def gather(
        self,
        subject: Subject[Req, Rep],
        message: Req,
        *ids: str,
        timeout_s: float = 0.5,
        num_max: int = 1024,
        until: Callable[[list[Rep]], bool] = lambda replies: False,
    ) -> list[Rep]:
        """Request from all servers of `subject` and collect the replies of `timeout_s`.

        Args:
            until: whether these replies are enough.
        """
        replies: list[Rep] = []
        inbox = self._client.new_inbox()
        done = asyncio.Event()

        async def collect(msg: Msg) -> None:
            headers = msg.headers or {}
            is_alone = "Status" in headers  # the server reports no responders
            if not is_alone and ERROR_HEADER not in headers:
                replies.append(decode(subject.reply, msg.data))
            if is_alone or len(replies) >= num_max or until(replies):
                done.set()

        subscription = await self._client.subscribe(inbox, cb=collect)
        try:
            await self._client.publish(subject.name(*ids), encode(message), reply=inbox)
            await wait_set(done, timeout_s)
        except NatsError:
            pass  # disconnected: return the replies so far
        finally:
            await subscription.unsubscribe()
        return replies

    async def survey(
        self,
        subject: Subject[Req, Rep],
        on_reply: Callable[[Rep], None],
        on_echo: Callable[[], None],
    ) -> Callable[[Req], Awaitable[None]]:
        """Prepare repeated requests to all servers of `subject`; the result sends one.

        Args:
            on_reply: called with every reply, to any of the requests.
            on_echo: called when the server has delivered a request.
        """
        inbox = self._client.new_inbox()
        name = subject.name()
        prepare(subject.reply)

        async def on_message(msg: Msg) -> None:
            if not msg.data and not msg.headers:  # our own, sent after the request
                on_echo()
            elif not (msg.headers and (ERROR_HEADER in msg.headers or "Status" in msg.headers)):
                try:
                    reply = decode(subject.reply, msg.data)
                except MalformedMessage:
                    MALFORMED.labels(name).inc()
                    return
                self._handle(name, on_reply, reply)

        async def ask(message: Req) -> None:
            try:
                await self._client.publish(name, encode(message), reply=inbox)
                await self._client.publish(inbox, b"")
            except NatsError as error:
                raise PeerUnavailable(f"publish to {name}: {error}") from None

        await self._subscribe_raw(inbox, "", on_message)
        return ask
