"""The connection under the bus: connect, disconnect, reconnect, drain."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import FlushTimeoutError, SlowConsumerError

from shared.bus.bucket import KvBucket
from shared.bus.paced import Pace, PacedClient
from shared.errors import PeerUnavailable, SymphonyError, reason
from shared.runtime.access import NatsAccess
from shared.runtime.metrics import counter
from shared.runtime.sparsely import Sparsely
from shared.runtime.tasks import Tasks, end_within
from shared.runtime.urls import hide_password
from shared.wire.subjects import Bucket

log = logging.getLogger(__name__)

Value = TypeVar("Value")

PENDING_MESSAGES_MAX = 65_536
PENDING_BYTES_MAX = 48 * 1024 * 1024  # under the server's own 64 MiB limit for slow consumers
PACED_PENDING_MAX = (1024, 16 * 1024 * 1024)
CLOSE_S = 5.0
ERROR_HEADER = "Symphony-Error"

MALFORMED = counter(
    "bus_malformed_total", "Messages that did not fit their declared type", ["subject"]
)
HANDLER_ERRORS = counter(
    "bus_rejected_total", "Requests answered with an error", ["subject", "code"]
)
SLOW = counter(
    "bus_slow_consumer_total", "Times a subscription fell behind and dropped messages", []
)


class Connection:
    """A connection to NATS that reconnects for ever, and its subscriptions."""

    def __init__(
        self,
        client: Client,
        url: str = "",
        pending_max: tuple[int, int] = (PENDING_MESSAGES_MAX, PENDING_BYTES_MAX),
    ) -> None:
        self._client = client
        self._pending_max = pending_max
        self._server = hide_password(url)
        self._troubles = Sparsely()  # the client reports every attempt, ten a second
        self._last_reason = "no answer"
        self._has_server_reason = False  # whether that is an error sent by the server
        self._tasks = Tasks("handler failed")
        self._is_back = asyncio.Event()  # cleared by its waiters
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
        pace: Pace | None = None,
    ) -> Self:
        """Connect to the server at `url`, waiting up to `timeout_s` for it to come up; None: until
        it does.

        Args:
            pace: limit of the rate of messages from clients, few of which are then buffered here;
                None: all messages are from services.

        Raises:
            ConfigError: a file that `access` names cannot be read.
            PeerUnavailable: no server answered in time; says why the last attempt failed.
        """
        options = (access or NatsAccess()).options()
        client = Client() if pace is None else PacedClient(pace)
        bus = cls(client, url) if pace is None else cls(client, url, PACED_PENDING_MAX)
        try:
            connecting = client.connect(
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
            await end_within(connecting, timeout_s)
        except (OSError, NatsError) as error:  # a timeout is an OSError
            why = bus._last_reason if isinstance(error, TimeoutError) else reason(error)
            with suppress(OSError, NatsError):
                await end_within(client.close(), CLOSE_S)
            within = "" if timeout_s is None else f" within {timeout_s:g} s"
            raise PeerUnavailable(f"NATS at {bus._server} did not answer{within}: {why}") from None
        bus._back_at_s = -math.inf
        if bus._troubles.clear():
            log.info("nats connected")
        return bus

    @property
    def connected(self) -> bool:
        """Whether it is connected at this moment."""
        return self._client.is_connected

    @property
    def steady_for_s(self) -> float:
        """Time since the last reconnect; infinite if it never disconnected, 0 while it is
        disconnected. A peer that was seen on the first connection was connected, too.
        """
        return max(asyncio.get_running_loop().time() - self._back_at_s, 0.0)

    @property
    def is_open(self) -> bool:
        """Whether the server accepts clients without authentication."""
        return not self._client._server_info.get("auth_required", False)

    @property
    def payload_bytes_max(self) -> int:
        """The largest message that the server accepts."""
        return self._client.max_payload

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every reconnect (messages sent by others meanwhile are lost)."""
        self._on_reconnect.append(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the connection breaks; not after `drain`."""
        self._on_disconnect.append(callback)

    async def bucket(self, bucket: Bucket[Value], *, timeout_s: float = 5.0) -> KvBucket[Value]:
        """A bucket of the key-value store, created if needed. Reads and writes wait `timeout_s`.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: it does not answer.
        """
        store = KvBucket(self._client, bucket, timeout_s)
        await store.open()
        return store

    async def flush(self) -> None:
        """Wait until the server has received everything sent so far, including subscriptions. If it
        does not answer, repeat: after three pings the client library counts the connection as
        broken and reconnects with all subscriptions.
        """
        while True:
            try:
                return await self._client.flush()
            except FlushTimeoutError:
                log.warning("nats does not answer", extra={"url": self._server})

    async def drain(self) -> None:
        """Finish handlers of delivered messages, send the buffer, then close."""
        self._is_draining = True
        await self._tasks.wait(2.0)
        try:
            if self._client.is_connected:
                await self._client.drain()
            else:
                await end_within(self._client.close(), CLOSE_S)
        except (TimeoutError, OSError, NatsError) as error:
            log.warning("drain failed", extra={"error": str(error)})

    async def _subscribe_raw(
        self, name: str, queue: str, cb: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        return await self._client.subscribe(
            name,
            queue=queue,
            cb=cb,
            pending_msgs_limit=self._pending_max[0],
            pending_bytes_limit=self._pending_max[1],
        )

    def _handle(self, name: str, handler: Callable[[Value], None], message: Value) -> None:
        """Call a handler. The client library would only log its errors; here an invalid message is
        rejected and counted, and any other error ends the process.
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

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            SLOW.inc()
        # A refused client receives the server's error, or only a reset: keep the error.
        if not isinstance(error, ConnectionResetError) or not self._has_server_reason:
            self._last_reason = reason(error)
            self._has_server_reason = isinstance(error, NatsError)
        num = self._troubles.hear(type(error).__name__, _now_ns())
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
        self._back_at_s = asyncio.get_running_loop().time()
        self._is_back.set()
        log.info("nats reconnected")
        for callback in self._on_reconnect:
            callback()


def _now_ns() -> int:
    return round(asyncio.get_running_loop().time() * 1e9)
