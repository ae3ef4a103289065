"""The receiving side of the bus: handlers of messages and of requests."""

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
from shared.errors import InvalidRequest, MalformedMessage, SymphonyError
from shared.ids import TenantId
from shared.wire.error_wire import error_to_wire
from shared.wire.messages import decode, encode, prepare
from shared.wire.subjects import Subject
from shared.wire.tenants import reply_subject, subject_of, tenant_of

log = logging.getLogger(__name__)

Req = TypeVar("Req")
Rep = TypeVar("Rep")

CONCURRENCY_MAX = 256
PUBLIC_CONCURRENCY_MAX = 64
PUBLIC_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message as received.

    Attributes:
        reply: subject of the reply; empty: none is wanted.
    """

    payload: bytes
    reply: str
    subject: str
    headers: Mapping[str, str]


class Receiver(Connection):
    """A connection whose handlers receive messages and answer requests."""

    async def subscribe(
        self, subject: Subject[Req, Any], handler: Callable[[Req], None], *ids: str
    ) -> Subscription:
        """Pass every message to `handler`, in order. It must not block: put the message into the
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
        """Answer requests on `subject`. A `SymphonyError` of the handler is sent to the caller."""
        return await self.serve_some(subject, handler, *ids, concurrency_max=concurrency_max)

    async def serve_some(
        self,
        subject: Subject[Req, Rep],
        handler: Callable[[Req], Awaitable[Rep | None]],
        *ids: str,
        concurrency_max: int = CONCURRENCY_MAX,
    ) -> Subscription:
        """Like `serve`, for requests to many servers: a handler may return None to send nothing."""

        async def without_tenant(_: str, message: Req) -> Rep | None:
            return await handler(message)

        return await self._serve(subject, subject.name(*ids), without_tenant, concurrency_max)

    async def serve_tenants(
        self,
        subject: Subject[Req, Rep],
        handler: Callable[[TenantId, Req], Awaitable[Rep | None]],
        *,
        tenant: TenantId | None = None,
    ) -> Subscription:
        """Like `serve`, for the tenants in place of the star in `subject`. Messages of more than
        `PUBLIC_BYTES_MAX` are refused without decoding.

        Args:
            handler: a message for which it returns None is not answered.
            tenant: accept only this tenant's messages; None: any tenant's.
        """

        async def of_tenant(name: str, message: Req) -> Rep | None:
            return await handler(tenant_of(subject.pattern, name), message)

        def check(msg: Msg) -> None:
            if len(msg.data) > PUBLIC_BYTES_MAX:
                raise InvalidRequest(f"the message is larger than {PUBLIC_BYTES_MAX} bytes")

        name = subject_of(subject.pattern, tenant)
        return await self._serve(subject, name, of_tenant, PUBLIC_CONCURRENCY_MAX, check)

    async def _serve(
        self,
        subject: Subject[Req, Rep],
        name: str,
        handler: Callable[[str, Req], Awaitable[Rep | None]],
        concurrency_max: int,
        check: Callable[[Msg], None] = lambda _: None,
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
                check(msg)
            except SymphonyError as error:
                await refuse(msg, error)
                return
            await slots.acquire()
            self._tasks.spawn(answer(msg))

        return await self._subscribe_raw(name, subject.queue, on_message)

    async def serve_raw(
        self, name: str, handler: Callable[[RawMessage], Awaitable[None]], queue: str
    ) -> Subscription:
        """For a public subject with a streamed reply: `handler` runs as a task. Its errors affect
        this message only, since any client may send one.
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
        """A reply's payload and headers; those of an error if the reply cannot be encoded."""
        try:
            return encode(reply), None
        except (TypeError, ValueError) as error:
            log.exception("a reply cannot be encoded", extra={"subject": name})
            broken = SymphonyError(f"the reply cannot be encoded: {error}")
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
        """The subject of the reply; empty: none."""
        return msg.reply if self.is_open else reply_subject(msg.subject, msg.reply)
