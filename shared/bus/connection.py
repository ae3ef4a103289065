"""The connection under the bus: it stands, breaks, comes back, and is drained at the end."""

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

from shared.access import NatsAccess
from shared.bucket import KvBucket
from shared.bus.paced import Pace, PacedClient
from shared.errors import PeerUnavailable, SymphonyError, reason
from shared.metrics import counter
from shared.sparsely import Sparsely
from shared.subjects import Bucket
from shared.tasks import Tasks
from shared.urls import hide_password

log = logging.getLogger(__name__)

Value = TypeVar("Value")

PENDING_MESSAGES_MAX = 65_536
PENDING_BYTES_MAX = 48 * 1024 * 1024  # under the server's own 64 MiB limit for slow consumers
STRANGERS_PENDING_MAX = (1024, 16 * 1024 * 1024)
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
    """A connection to NATS that reconnects for ever, and what is delivered on it."""

    def __init__(
        self,
        client: Client,
        url: str = "",
        pending_max: tuple[int, int] = (PENDING_MESSAGES_MAX, PENDING_BYTES_MAX),
    ) -> None:
        self._client = client
        self._pending_max = pending_max
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
        pace: Pace | None = None,
    ) -> Self:
        """Connect to the server at `url`, waiting up to `timeout_s` for it to come up; None: until
        it does.

        Args:
            pace: of what it takes from strangers, of which little then waits here; None: all is
                from services.

        Raises:
            ConfigError: what `access` names cannot be read.
            PeerUnavailable: no server answered in time; says why the last attempt failed.
        """
        options = (access or NatsAccess()).options()
        if pace is None:
            client = Client()
            bus = cls(client, url)
        else:
            client = PacedClient(pace)
            bus = cls(client, url, STRANGERS_PENDING_MAX)
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
        return max(asyncio.get_running_loop().time() - self._back_at_s, 0.0)

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

    async def bucket(self, bucket: Bucket[Value], *, timeout_s: float = 5.0) -> KvBucket[Value]:
        """A bucket of the key-value store, made if need be. Reads and writes wait `timeout_s`.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: it does not answer.
        """
        store = KvBucket(self._client, bucket, timeout_s)
        await store.open()
        return store

    async def flush(self) -> None:
        """Wait until the server has seen everything sent so far, subscriptions included. A server
        that does not answer is asked again: after three pings the client's library takes the
        connection for broken, and a new one begins with all subscriptions.
        """
        while True:
            try:
                return await self._client.flush()
            except FlushTimeoutError:
                log.warning("nats does not answer", extra={"url": self._server})

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
            pending_msgs_limit=self._pending_max[0],
            pending_bytes_limit=self._pending_max[1],
        )

    def _handle(self, name: str, handler: Callable[[Value], None], message: Value) -> None:
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

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            SLOW.inc()
        # who is refused may read the server's word, or only that it closed: the word tells why
        if not isinstance(error, ConnectionResetError) or not self._is_told_why:
            self._last_reason = reason(error)
            self._is_told_why = isinstance(error, NatsError)
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
