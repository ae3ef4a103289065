"""What a service knows of NATS: nats-py's client, and the bus on it, over the simulated network."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from nats import errors

from loadtest.sim.loop import SimLoop, fail, settle
from loadtest.sim.network import Message, Network, Peer
from loadtest.sim.network import Subscription as Registration
from shared.bus import Bus
from shared.bus.bucket import Entry, RevisionConflict
from shared.errors import PeerUnavailable
from shared.wire.messages import decode, encode
from shared.wire.subjects import Bucket

V = TypeVar("V")

MAX_PAYLOAD = 1024 * 1024
FLUSH_TIMEOUT_S = 10.0

OnMessage = Callable[[Any], Coroutine[Any, Any, None]]


class SimSubscription:
    """Messages of one subscription, one after the other, as `nats.aio.subscription` hands them on:
    what a callback raises goes to the error callback, and the next message follows.

    A callback runs without a task of its own up to where it waits for the first time. Most never
    do.
    """

    def __init__(
        self, client: "SimClient", subject: str, queue: str, cb: OnMessage, pending_max: int
    ) -> None:
        self._client = client
        self._cb = cb
        self._pending: deque[Message] = deque()
        self._pending_max = pending_max
        self._is_busy = False
        self._is_closed = False
        network, process = client.network, client.process
        self._registration: Registration = network.subscribe(process, subject, self._put, queue)

    async def unsubscribe(self, limit: int = 0) -> None:
        """Take no more messages; those that wait are dropped."""
        assert not limit
        if self._client.is_closed:
            raise errors.ConnectionClosedError
        if self._is_closed:
            raise errors.BadSubscriptionError
        self._is_closed = True
        self._pending.clear()
        self._client.network.unsubscribe(self._registration)

    def _put(self, message: Message) -> None:
        if self._is_closed or self._client.is_closed:
            return
        loop = self._client.loop
        if len(self._pending) >= self._pending_max:
            late: Any = self
            loop.create_task(self._client.on_error(errors.SlowConsumerError("", "", 0, late)))
            return
        self._pending.append(message)
        if not self._is_busy:
            self._is_busy = True
            loop.call_now(self._work)

    def _work(self) -> None:
        while self._pending:
            work = self._cb(self._pending.popleft())
            context = copy_context()  # as a task of its own would have
            try:
                awaited = context.run(work.send, None)
            except StopIteration:
                continue
            except Exception as error:
                self._client.loop.create_task(self._go_on(self._client.on_error(error)))
                return
            rest = self._go_on(_rest_of(work, awaited))
            self._client.loop.create_task(rest, context=context)
            return
        self._is_busy = False

    async def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            await self._client.on_error(error)
        self._work()


@coroutine
def _rest_of(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """What is left of a coroutine that waits for `awaited`."""
    yield awaited
    yield from work


class SimClient:
    """As much of `nats.aio.client.Client` as the bus uses."""

    def __init__(self, network: Network, process: Peer, loop: SimLoop) -> None:
        self.network = network
        self.process = process
        self.loop = loop
        self.is_closed = False
        self.on_error: Callable[[Exception], Coroutine[Any, Any, None]]
        self.max_payload = MAX_PAYLOAD
        self._server_info: dict[str, Any] = {}
        self._subscriptions: list[SimSubscription] = []

    @property
    def is_connected(self) -> bool:
        return not self.is_closed and self.network.has_connection(self.process)

    def new_inbox(self) -> str:
        return self.network.new_inbox()

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        if self.is_closed:
            raise errors.ConnectionClosedError
        num_bytes = len(payload)
        if not self.network.has_room(self.process, num_bytes):
            raise errors.OutboundBufferLimitError
        if num_bytes > MAX_PAYLOAD:
            raise errors.MaxPayloadError
        self.network.publish(self.process, Message(subject, payload, reply, headers), num_bytes)

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: OnMessage | None = None,
        pending_msgs_limit: int = 65_536,
        pending_bytes_limit: int = 0,
    ) -> SimSubscription:
        del pending_bytes_limit
        assert cb is not None
        if self.is_closed:
            raise errors.ConnectionClosedError
        return SimSubscription(self, subject, queue, cb, pending_msgs_limit)

    async def request(self, subject: str, payload: bytes = b"", timeout: float = 0.5) -> Message:
        answered: asyncio.Future[Message] = self.loop.create_future()
        inbox = self.new_inbox()
        registration = self.network.subscribe(
            self.process, inbox, partial(self.loop.call_now, settle, answered)
        )
        timer = self.loop.call_later(timeout, fail, answered, errors.TimeoutError)
        try:
            await self.publish(subject, payload, reply=inbox)
            reply = await answered
        finally:
            timer.cancel()
            self.network.unsubscribe(registration)
        if reply.headers and reply.headers.get("Status") == "503":
            raise errors.NoRespondersError
        return reply

    async def flush(self, timeout: float = FLUSH_TIMEOUT_S) -> None:
        if self.is_closed:
            raise errors.ConnectionClosedError
        if self.is_connected:  # else all is sent when it is again
            await self.ask(lambda: None, timeout, errors.FlushTimeoutError)

    async def ask(
        self,
        question: Callable[[], V],
        timeout_s: float,
        late: type[Exception] = TimeoutError,
        is_asked: Callable[[], bool] = lambda: True,
    ) -> V:
        """What `question` returns when it runs at the server; not if that does not answer it."""
        answered: asyncio.Future[V] = self.loop.create_future()

        def at_server() -> Callable[[], None] | None:
            if not is_asked():
                return None
            return partial(self.loop.call_now, settle, answered, question())

        timer = self.loop.call_later(timeout_s, fail, answered, late)
        self.network.ask_server(self.process, at_server)
        try:
            return await answered
        finally:
            timer.cancel()

    async def drain(self) -> None:
        if self.is_closed:
            raise errors.ConnectionClosedError
        await self.flush()
        await self.close()

    async def close(self) -> None:
        self.is_closed = True


class Store:
    """The key-value store in the NATS server: values and revisions by bucket and key.

    Attributes:
        is_up: it answers.
    """

    def __init__(self) -> None:
        self.is_up = True
        self.values: dict[tuple[str, str], tuple[bytes, int]] = {}
        self._revision = 0

    def forget(self) -> None:
        """It was lost, and begins above every revision that it ever had."""
        self.values.clear()
        self._revision += 1000

    def get(self, bucket: str, key: str) -> tuple[bytes, int]:
        """A value and its revision; (b"", 0): never written."""
        return self.values.get((bucket, key), (b"", 0))

    def update(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        """The new revision; None where the key is at another one than `revision`."""
        if self.get(bucket, key)[1] != revision:
            return None
        self._revision += 1
        self.values[bucket, key] = (value, self._revision)
        return self._revision


class SimBucket:
    """`shared.bus.bucket.KvBucket` on the simulated store."""

    def __init__(
        self, client: SimClient, store: Store, bucket: Bucket[V], timeout_s: float
    ) -> None:
        self._client = client
        self._store = store
        self._bucket = bucket
        self._timeout_s = timeout_s

    async def get(self, key: str) -> Entry[Any]:
        name = self._bucket.name
        data, revision = await self._ask(lambda: self._store.get(name, key))
        return Entry(decode(self._bucket.value, data) if revision else None, revision)

    async def update(self, key: str, value: object, revision: int) -> int:
        name, data = self._bucket.name, encode(value)
        new = await self._ask(lambda: self._store.update(name, key, data, revision))
        if new is None:
            raise RevisionConflict(f"{name}/{key} is not at {revision}")
        return new

    async def _ask(self, question: Callable[[], V]) -> V:
        try:
            return await self._client.ask(
                question, self._timeout_s, is_asked=lambda: self._store.is_up
            )
        except TimeoutError:
            raise PeerUnavailable(f"store {self._bucket.name}: no answer") from None


class SimBus(Bus):
    """The production bus on a `SimClient`."""

    def __init__(self, client: SimClient, store: Store) -> None:
        super().__init__(client)  # type: ignore[arg-type]
        self._store = store
        client.on_error = self._on_error
        self._back_at_s = float("-inf")

    async def bucket(self, bucket: Bucket[V], *, timeout_s: float = 5.0) -> Any:
        client: Any = self._client
        found = SimBucket(client, self._store, bucket, timeout_s)
        await found.get("")  # it answers
        return found
