"""The one way onto NATS: typed publish, subscribe, serve, request; readiness, reconnect, drain.

The bus knows nothing of any service. Everything pending is bounded: a subscription that falls
behind drops and counts, a serving subject runs at most `concurrency_max` handlers at once.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import NoneType
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, OutboundBufferLimitError, SlowConsumerError
from nats.errors import TimeoutError as NatsTimeoutError

from shared.access import NatsAccess
from shared.bucket import KvBucket
from shared.error_wire import error_from_wire, error_to_wire
from shared.errors import (
    MalformedMessage,
    NobodyListens,
    PeerUnavailable,
    SymphonyError,
    reason,
)
from shared.ids import TenantId
from shared.messages import decode, encode, prepare
from shared.metrics import counter
from shared.sparsely import Sparsely
from shared.subjects import Bucket, Subject
from shared.tasks import Tasks, end_if_cancelled, wait_set
from shared.tenants import tenant_of
from shared.urls import hide_password

log = logging.getLogger(__name__)

Req = TypeVar("Req")
Rep = TypeVar("Rep")

ERROR_HEADER = "Symphony-Error"
PENDING_MESSAGES_MAX = 65_536
PENDING_BYTES_MAX = 48 * 1024 * 1024  # under the server's own 64 MiB limit for slow consumers
CONCURRENCY_MAX = 256
ROOM_PATIENCE_S = 120.0  # of a message that finds no room while NATS is away
NO_RESPONDER_RETRY_S = 0.02
# nats-py can report no responders on a fresh connection although the responder subscribed and
# flushed.
NO_RESPONDER_GRACE_S = 1.0

MALFORMED = counter(
    "bus_malformed_total", "Messages that did not fit their declared type", ["subject"]
)
HANDLER_ERRORS = counter(
    "bus_rejected_total", "Requests answered with an error", ["subject", "code"]
)
SLOW = counter(
    "bus_slow_consumer_total", "Times a subscription fell behind and dropped messages", []
)


class Bus:
    """A connection to NATS that reconnects for ever.

    Make one with `Bus.connect`; end it with `drain`, after which nothing is delivered any more.
    """

    def __init__(self, client: Client, url: str = "") -> None:
        self._client = client
        self._server = hide_password(url)
        self._troubles = Sparsely()  # NATS' client tells of every attempt, ten a second
        self._last_reason = "no answer"
        self._is_told_why = False  # whether that is the server's own word
        self._tasks = Tasks("handler failed")
        self._is_back = asyncio.Event()  # cleared by who waits for it
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_disconnect: list[Callable[[], None]] = []
        self._is_draining = False
        self._back_at_s = math.inf

    @classmethod
    async def connect(
        cls,
        url: str,
        name: str,
        access: NatsAccess | None = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> "Bus":
        """Connect to the server at `url`, waiting up to `timeout_s` for it to come up; None: until
        it does.

        Raises:
            ConfigError: what `access` names cannot be read.
            PeerUnavailable: no server answered in time; says why the last attempt failed.
        """
        options = (access or NatsAccess()).options()
        client = Client()
        bus = cls(client, url)
        try:
            async with asyncio.timeout(timeout_s):
                await client.connect(
                    url,
                    name=name,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.1,  # type: ignore[arg-type]  # a float works
                    connect_timeout=2,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    allow_reconnect=True,
                    error_cb=bus._on_error,
                    disconnected_cb=bus._on_disconnected,
                    reconnected_cb=bus._on_reconnected,
                    **options,
                )
        except (OSError, NatsError) as error:  # a timeout is an OSError
            why = bus._last_reason if isinstance(error, TimeoutError) else reason(error)
            with suppress(OSError, NatsError):
                await client.close()
            within = "" if timeout_s is None else f" within {timeout_s:g} s"
            raise PeerUnavailable(f"NATS at {bus._server} did not answer{within}: {why}") from None
        bus._back_at_s = -math.inf
        if bus._troubles.clear():
            log.info("nats connected")
        return bus

    @property
    def connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return self._client.is_connected

    @property
    def steady_for_s(self) -> float:
        """How long ago the connection came back; infinite if it never broke, 0 if it is away. Who
        was heard on the first one had found the server, too.
        """
        return max(time.monotonic() - self._back_at_s, 0.0)

    @property
    def is_open(self) -> bool:
        """Whether the server lets anybody in."""
        return not self._client._server_info.get("auth_required", False)

    @property
    def payload_bytes_max(self) -> int:
        """The largest message that the server takes."""
        return self._client.max_payload

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every reconnect (messages sent meanwhile by others are lost)."""
        self._on_reconnect.append(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the connection breaks; not at an orderly end."""
        self._on_disconnect.append(callback)

    async def publish(self, subject: Subject[Req, Any], message: Req, *ids: str) -> None:
        """Send without an answer. While disconnected, messages wait in a bounded buffer, and when
        that is full their senders do.

        Raises:
            PeerUnavailable: there is no room for `ROOM_PATIENCE_S`, or the message is larger than
                the server takes.
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
        """NATS is away, and what was said meanwhile fills the buffer."""
        try:
            async with asyncio.timeout(ROOM_PATIENCE_S):
                while True:
                    self._is_back.clear()
                    if not self._client.is_connected:
                        await self._is_back.wait()
                    with suppress(OutboundBufferLimitError):  # others waited, too
                        await self._client.publish(subject, payload)
                        return
        except TimeoutError:
            raise PeerUnavailable(
                f"publish to {subject}: NATS is away for {ROOM_PATIENCE_S:g} s"
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
        """Send and wait for the typed answer, up to `grace_s` of it for somebody who listens.

        Raises:
            NobodyListens: the server knows of nobody who does.
            PeerUnavailable: no answer in `timeout_s`.
            SymphonyError: the error the other side answered with.
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
                    raise NobodyListens(f"nobody serves {name}") from None
                await asyncio.sleep(NO_RESPONDER_RETRY_S)
            except (TimeoutError, NatsTimeoutError):
                raise PeerUnavailable(f"{name} did not answer within {timeout_s:g} s") from None
            except NatsError as error:
                raise PeerUnavailable(f"{name}: {error}") from None
            finally:
                end_if_cancelled()  # the client's library may have kept it for itself
        if reply.headers and ERROR_HEADER in reply.headers:
            raise error_from_wire(reply.data)
        return decode(subject.reply, reply.data)

    async def has_responder(
        self, subject: Subject[Req, Rep], message: Req, *ids: str, timeout_s: float = 1.0
    ) -> bool:
        """Ask once, without grace: False as soon as the server knows that nobody listens, or after
        `timeout_s`.
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
        """Ask everyone who serves `subject` and collect what arrives within `timeout_s`.

        Args:
            until: whether these answers are enough.
        """
        replies: list[Rep] = []
        inbox = self._client.new_inbox()
        done = asyncio.Event()

        async def collect(msg: Msg) -> None:
            headers = msg.headers or {}
            is_alone = "Status" in headers  # so says the server: nobody listens
            if not is_alone and ERROR_HEADER not in headers:
                replies.append(decode(subject.reply, msg.data))
            if is_alone or len(replies) >= num_max or until(replies):
                done.set()

        subscription = await self._client.subscribe(inbox, cb=collect)
        try:
            await self._client.publish(subject.name(*ids), encode(message), reply=inbox)
            await wait_set(done, timeout_s)
        except NatsError:
            pass  # the server is away: what has arrived is the answer
        finally:
            await subscription.unsubscribe()
        return replies

    async def survey(
        self,
        subject: Subject[Req, Rep],
        on_reply: Callable[[Rep], None],
        on_echo: Callable[[], None],
    ) -> Callable[[Req], Awaitable[None]]:
        """To ask everyone who serves `subject` again and again: call what this returns.

        Args:
            on_reply: takes every answer, to whichever question.
            on_echo: called when the server has passed a question on.
        """
        inbox = self._client.new_inbox()
        name = subject.name()
        prepare(subject.reply)

        async def on_message(msg: Msg) -> None:
            if not msg.data and not msg.headers:  # ours, behind the question
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

        async def of_nobody(_: str, message: Req) -> Rep:
            return await handler(message)

        return await self._serve(subject, subject.name(*ids), of_nobody, concurrency_max)

    async def serve_tenants(
        self,
        subject: Subject[Req, Rep],
        handler: Callable[[TenantId, Req], Awaitable[Rep]],
        *,
        concurrency_max: int = CONCURRENCY_MAX,
    ) -> Subscription:
        """Like `serve`, for the tenants in place of the star in `subject`."""

        async def of_tenant(name: str, message: Req) -> Rep:
            return await handler(tenant_of(subject.pattern, name), message)

        return await self._serve(subject, subject.pattern, of_tenant, concurrency_max)

    async def _serve(
        self,
        subject: Subject[Req, Rep],
        name: str,
        handler: Callable[[str, Req], Awaitable[Rep]],
        concurrency_max: int,
    ) -> Subscription:
        assert subject.reply is not NoneType, f"{subject.pattern} has no reply: subscribe to it"
        prepare(subject.request)
        slots = asyncio.Semaphore(concurrency_max)

        async def answer(msg: Msg) -> None:
            try:
                reply = await handler(msg.subject, decode(subject.request, msg.data))
            except SymphonyError as error:
                if isinstance(error, MalformedMessage):
                    MALFORMED.labels(name).inc()
                HANDLER_ERRORS.labels(name, error.code).inc()
                await self._respond(msg, encode(error_to_wire(error)), {ERROR_HEADER: error.code})
            else:
                await self._respond(msg, *self._encoded(name, reply))
            finally:
                slots.release()

        async def on_message(msg: Msg) -> None:
            await slots.acquire()
            self._tasks.spawn(answer(msg))

        return await self._subscribe_raw(name, subject.queue, on_message)

    async def serve_raw(
        self, name: str, handler: Callable[[bytes, str, str], Awaitable[None]], queue: str
    ) -> Subscription:
        """For a public subject with a streamed reply: `handler(payload, reply_subject, subject)`
        runs as a task. Whatever it raises costs this message only: anybody may send one.
        """

        async def on_message(msg: Msg) -> None:
            async def run() -> None:
                try:
                    await handler(msg.data, msg.reply, msg.subject)
                except Exception:
                    HANDLER_ERRORS.labels(name, SymphonyError.code).inc()
                    log.exception("request failed", extra={"subject": name})

            self._tasks.spawn(run())

        return await self._subscribe_raw(name, queue, on_message)

    async def bucket(self, bucket: Bucket[Req], *, timeout_s: float = 5.0) -> KvBucket[Req]:
        """A bucket of the key-value store, made if need be. Reads and writes wait `timeout_s`.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: it does not answer.
        """
        store = KvBucket(self._client, bucket, timeout_s)
        await store.open()
        return store

    async def flush(self) -> None:
        """Wait until the server has seen everything sent so far, subscriptions included."""
        await self._client.flush()

    async def drain(self) -> None:
        """Finish what was delivered, send what is buffered, then close."""
        self._is_draining = True
        await self._tasks.wait(2.0)
        try:
            if self._client.is_connected:
                await self._client.drain()
            else:
                await self._client.close()
        except (TimeoutError, OSError, NatsError) as error:
            log.warning("drain failed", extra={"error": str(error)})

    async def _subscribe_raw(
        self, name: str, queue: str, cb: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        return await self._client.subscribe(
            name,
            queue=queue,
            cb=cb,
            pending_msgs_limit=PENDING_MESSAGES_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )

    def _handle(self, name: str, handler: Callable[[Req], None], message: Req) -> None:
        """The client's library would log what a handler raises, and go on. Here a peer's fault is
        rejected and counted, and a fault of ours ends the process.
        """
        try:
            handler(message)
        except SymphonyError as error:
            HANDLER_ERRORS.labels(name, error.code).inc()
            log.warning("message rejected", extra={"subject": name, "error": error.message})
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the handler of {name} failed", "exception": error}
            )

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
        if not msg.reply:
            return
        try:
            await self._client.publish(msg.reply, payload, headers=headers)
        except NatsError as error:
            log.warning("reply lost", extra={"subject": msg.subject, "error": str(error)})

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            SLOW.inc()
        # who is refused may read the server's word, or only that it closed: the word tells why
        if not isinstance(error, ConnectionResetError) or not self._is_told_why:
            self._last_reason = reason(error)
            self._is_told_why = isinstance(error, NatsError)
        num = self._troubles.hear(type(error).__name__, time.monotonic_ns())
        if num:
            log.warning(
                "nats error",
                extra={
                    "url": self._server,
                    "error": f"{type(error).__name__}: {error}",
                    "num_errors": num,
                },
            )

    async def _on_disconnected(self) -> None:
        self._back_at_s = math.inf
        if self._is_draining:
            return
        log.warning("nats disconnected")
        for callback in self._on_disconnect:
            callback()

    async def _on_reconnected(self) -> None:
        self._troubles.clear()
        self._back_at_s = time.monotonic()
        self._is_back.set()
        log.info("nats reconnected")
        for callback in self._on_reconnect:
            callback()
