"""The receiving side of the bus: handlers of messages, and of requests that they answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from shared.bus.connection import ERROR_HEADER, HANDLER_ERRORS, MALFORMED, Connection
from shared.error_wire import error_to_wire
from shared.errors import InvalidRequest, MalformedMessage, SymphonyError
from shared.ids import TenantId
from shared.messages import decode, encode, prepare
from shared.subjects import Subject
from shared.tenants import reply_subject, subject_of, tenant_of

log = logging.getLogger(__name__)

Req = TypeVar("Req")
Rep = TypeVar("Rep")

CONCURRENCY_MAX = 256
PUBLIC_CONCURRENCY_MAX = 64
PUBLIC_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message as it came.

    Attributes:
        reply: subject of the answer; empty: nobody waits for one.
    """

    payload: bytes
    reply: str
    subject: str
    headers: Mapping[str, str]


class Serving(Connection):
    """A connection on which handlers take messages and answer requests."""

    async def subscribe(
        self, subject: Subject[Req, Any], handler: Callable[[Req], None], *ids: str
    ) -> Subscription:
        """Hand every message to `handler`, in order. It must not block: put the message into the
        core's queue. A message that it rejects is counted.
        """
        name = subject.name(*ids)
        prepare(subject.request)

        async def on_message(msg: Msg) -> None:
            try:
                message = decode(subject.request, msg.data)
            except MalformedMessage as error:
                MALFORMED.labels(name).inc()
                log.warning("malformed message", extra={"subject": name, "error": error.message})
                return
            self._handle(name, handler, message)

        return await self._subscribe_raw(name, subject.queue, on_message)

    async def serve(
        self,
        subject: Subject[Req, Rep],
        handler: Callable[[Req], Awaitable[Rep]],
        *ids: str,
        concurrency_max: int = CONCURRENCY_MAX,
    ) -> Subscription:
        """Answer requests on `subject`. A `SymphonyError` from the handler goes back to the caller
        as it is.
        """
        return await self.serve_some(subject, handler, *ids, concurrency_max=concurrency_max)

    async def serve_some(
        self,
        subject: Subject[Req, Rep],
        handler: Callable[[Req], Awaitable[Rep | None]],
        *ids: str,
        concurrency_max: int = CONCURRENCY_MAX,
    ) -> Subscription:
        """Like `serve`, of a question to many: who has nothing to say answers None, and nothing is
        sent.
        """

        async def of_nobody(_: str, message: Req) -> Rep | None:
            return await handler(message)

        return await self._serve(subject, subject.name(*ids), of_nobody, concurrency_max)

    async def serve_tenants(
        self,
        subject: Subject[Req, Rep],
        handler: Callable[[TenantId, Req], Awaitable[Rep]],
        *,
        tenant: TenantId | None = None,
        admit: Callable[[TenantId], bool] | None = None,
        payload_bytes_max: int = PUBLIC_BYTES_MAX,
        concurrency_max: int = PUBLIC_CONCURRENCY_MAX,
    ) -> Subscription:
        """Like `serve`, for the tenants in place of the star in `subject`.

        Args:
            tenant: take only what this one sends; None: anybody.
            admit: asked before anything is read of a message. Of a tenant for whom it raises, the
                sender is sent the error; of one for whom it is false, the message is not answered.
            payload_bytes_max: larger messages are refused unread.
        """

        async def of_tenant(name: str, message: Req) -> Rep:
            return await handler(tenant_of(subject.pattern, name), message)

        def admits(msg: Msg) -> bool:
            if len(msg.data) > payload_bytes_max:
                raise InvalidRequest(f"the message is larger than {payload_bytes_max} bytes")
            return admit is None or admit(tenant_of(subject.pattern, msg.subject))

        name = subject_of(subject.pattern, tenant)
        return await self._serve(subject, name, of_tenant, concurrency_max, admits)

    async def _serve(
        self,
        subject: Subject[Req, Rep],
        name: str,
        handler: Callable[[str, Req], Awaitable[Rep | None]],
        concurrency_max: int,
        admits: Callable[[Msg], bool] = lambda _: True,
    ) -> Subscription:
        assert subject.reply is not NoneType, f"{subject.pattern} has no reply: subscribe to it"
        prepare(subject.request)
        slots = asyncio.Semaphore(concurrency_max)

        async def answer(msg: Msg) -> None:
            try:
                reply = await handler(msg.subject, decode(subject.request, msg.data))
            except SymphonyError as error:
                await refuse(msg, error)
            else:
                if reply is not None:
                    await self._respond(msg, *self._encoded(name, reply))
            finally:
                slots.release()

        async def refuse(msg: Msg, error: SymphonyError) -> None:
            if isinstance(error, MalformedMessage):
                MALFORMED.labels(name).inc()
            HANDLER_ERRORS.labels(name, error.code).inc()
            await self._respond(msg, encode(error_to_wire(error)), {ERROR_HEADER: error.code})

        async def on_message(msg: Msg) -> None:
            try:
                if not admits(msg):
                    return
            except SymphonyError as error:
                await refuse(msg, error)
                return
            await slots.acquire()
            self._tasks.spawn(answer(msg))

        return await self._subscribe_raw(name, subject.queue, on_message)

    async def serve_raw(
        self, name: str, handler: Callable[[RawMessage], Awaitable[None]], queue: str
    ) -> Subscription:
        """For a public subject with a streamed reply: `handler` runs as a task. Whatever it raises
        costs this message only: anybody may send one.
        """

        async def on_message(msg: Msg) -> None:
            async def run() -> None:
                try:
                    reply = self._reply_of(msg)
                    await handler(RawMessage(msg.data, reply, msg.subject, msg.headers or {}))
                except Exception:
                    HANDLER_ERRORS.labels(name, SymphonyError.code).inc()
                    log.exception("request failed", extra={"subject": name})

            self._tasks.spawn(run())

        return await self._subscribe_raw(name, queue, on_message)

    def _encoded(self, name: str, reply: object) -> tuple[bytes, dict[str, str] | None]:
        """An answer's payload and headers; an error's, if the answer cannot be written down."""
        try:
            return encode(reply), None
        except (TypeError, ValueError) as error:
            log.exception("an answer cannot be encoded", extra={"subject": name})
            broken = SymphonyError(f"the answer cannot be encoded: {error}")
            HANDLER_ERRORS.labels(name, broken.code).inc()
            return encode(error_to_wire(broken)), {ERROR_HEADER: broken.code}

    async def _respond(self, msg: Msg, payload: bytes, headers: dict[str, str] | None) -> None:
        if not (reply := self._reply_of(msg)):
            return
        try:
            await self._client.publish(reply, payload, headers=headers)
        except NatsError as error:
            log.warning("reply lost", extra={"subject": msg.subject, "error": str(error)})

    def _reply_of(self, msg: Msg) -> str:
        """Where to answer a message; empty: nowhere."""
        return msg.reply if self.is_open else reply_subject(msg.subject, msg.reply)
