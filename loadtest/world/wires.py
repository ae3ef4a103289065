"""NATS: who listens where, what gets lost, and how a client of it behaves while it is away.

As in `shared.bus`: a publish without a connection waits in a bounded buffer, a request fails when
it is not answered in time, and at once where nobody listens.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

from loadtest.world.timeline import MS, SECOND, Action, Timeline
from shared.errors import NobodyListens, PeerUnavailable, SymphonyError
from shared.subjects import Subject

Reply = Callable[[Any], None]
Handler = Callable[[Any, Reply], None]
PENDING_MAX = 4096  # messages that wait in a client for its server
RECONNECT_MAX_NS = 300 * MS


class Peer(Protocol):
    """A client of the bus: it lives, stands still and dies.

    Attributes:
        life: counts its starts.
        is_ready: it had its first connection in this life.
    """

    is_up: bool
    is_ready: bool
    life: int

    def run(self, life: int, action: Action) -> None:
        """Do it now or as soon as it stands still no more, if this life still lasts."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""

    def on_disconnected(self) -> None:
        """Its connection broke."""

    def on_reconnected(self) -> None:
        """Its connection is back."""


@dataclass(slots=True)
class _Subscription:
    process: Peer
    life: int
    handler: Handler


@dataclass(slots=True)
class _Connection:
    """Attributes:
    on_open: called when it is open (again).
    number: counts connections of this life; what was on its way on an earlier one is lost.
    opened_at_ns: when the latest one was.
    cut_until_ns: it cannot connect before.
    mute_until_ns, deaf_until_ns: nothing gets out, or in, before; it does not know.
    """

    on_open: Action
    is_open: bool
    number: int = 0
    opened_at_ns: int = 0
    cut_until_ns: int = 0
    mute_until_ns: int = 0
    deaf_until_ns: int = 0
    last_at_ns: int = 0  # what does not get lost arrives in order, but for a few
    pending: deque[Action] = field(default_factory=deque)


@dataclass(slots=True)
class Weather:
    """How bad the network is now.

    Attributes:
        loss, duplication, slow: shares of messages that are lost, doubled, or ten times as late.
        delay_max_ns: each takes a random time up to this.
    """

    loss: float = 0.0
    duplication: float = 0.0
    slow: float = 0.0
    delay_max_ns: int = 2 * MS


class Wires:
    """The bus.

    Args:
        random: decides how messages fare.

    Attributes:
        is_up: the server runs.
        weather: shared by all connections.
    """

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self._timeline = timeline
        self._random = random
        self.is_up = True
        self.weather = Weather()
        self.num_lost = 0
        self._connections: dict[Peer, _Connection] = {}
        self._listeners: dict[tuple[str, str], list[_Subscription]] = {}

    def join(self, process: Peer, on_first: Action) -> None:
        """A process starts; `on_first` is called when it has its first connection."""
        old = self._connections.get(process)
        new = _Connection(on_open=on_first, is_open=False)
        if old is not None:
            new.cut_until_ns = old.cut_until_ns
        self._connections[process] = new
        self._connect(process, new)

    def leave(self, process: Peer) -> None:
        """A process died."""
        connection = self._connections[process]
        connection.is_open = False
        connection.number += 1
        for subscriptions in self._listeners.values():
            subscriptions[:] = [s for s in subscriptions if s.process is not process]

    def is_connected(self, process: Peer) -> bool:
        """Whether the process believes that it is, and is neither mute nor deaf."""
        connection = self._connections[process]
        now_ns = self._timeline.now_ns
        return connection.is_open and now_ns >= max(
            connection.mute_until_ns, connection.deaf_until_ns
        )

    def has_connection(self, process: Peer) -> bool:
        """Whether the process believes that it is connected."""
        return self._connections[process].is_open

    def steady_for_ns(self, process: Peer) -> int:
        """How long ago its connection came back; 0 if it is away, very long if it never broke."""
        connection = self._connections[process]
        if not connection.is_open:
            return 0
        return self._timeline.now_ns - connection.opened_at_ns if connection.number else 1 << 62

    def subscribe(
        self, process: Peer, subject: Subject[Any, Any], handler: Handler, ident: str = ""
    ) -> None:
        """Listen, for this life. `handler` is given the message and how to reply."""
        subscription = _Subscription(process, process.life, handler)
        self._listeners.setdefault((subject.pattern, ident), []).append(subscription)

    def publish(
        self, process: Peer, subject: Subject[Any, Any], message: object, ident: str = ""
    ) -> None:
        """Send to everybody who listens when it gets there."""

        def at_server() -> None:
            self._route(subject.pattern, ident, message, None)

        self._send(process, at_server)

    def request(
        self,
        process: Peer,
        subject: Subject[Any, Any],
        message: object,
        on_reply: Reply,
        on_error: Callable[[SymphonyError], None],
        *,
        ident: str = "",
        timeout_ns: int = 5 * SECOND,
    ) -> None:
        """Ask; exactly one of `on_reply` and `on_error` is called, in this life of the asker. A
        handler replies with a message or with a `SymphonyError`.
        """
        life, is_over = process.life, False

        def settle(answer: object) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if isinstance(answer, SymphonyError):
                on_error(answer)
            else:
                on_reply(answer)

        def arrive(answer: object) -> None:
            process.run(life, partial(settle, answer))

        def reply_from(server: Peer, answer: object) -> None:
            self._send(server, partial(self._deliver, process, partial(arrive, answer)))

        def ask() -> None:
            is_for_one = bool(subject.queue)
            if not self._route(subject.pattern, ident, message, reply_from, is_for_one):
                nobody = NobodyListens("nobody listens")
                self._deliver(process, partial(arrive, nobody))

        process.later(timeout_ns, partial(settle, PeerUnavailable("no answer")))
        self._send(process, ask)

    def tell(self, process: Peer, other: Peer, action: Action) -> None:
        """Send `other` something to do, over no subject of the table."""
        life = other.life
        at_other = partial(self._deliver, other, lambda: other.run(life, action))
        self._send(process, at_other)

    def ask_server(self, process: Peer, question: Callable[[], Reply | None]) -> None:
        """Ask the server itself (its key-value store): `question` runs there, and what it returns
        runs at the process when the answer arrives.
        """
        life = process.life

        def at_server() -> None:
            answer = question()
            if answer is not None:
                self._deliver(process, lambda: process.run(life, lambda: answer(None)))

        if self._connections[process].is_open:
            self._send(process, at_server)

    def stop(self, duration_ns: int) -> None:
        """The server goes away and comes back."""
        timeline = self._timeline
        timeline.note(f"nats away for {duration_ns / MS:.0f} ms")
        self.is_up = False
        for process, connection in self._connections.items():
            self._break(process, connection)

        def start() -> None:
            timeline.note("nats is back")
            self.is_up = True
            for process, connection in self._connections.items():
                if process.is_up:
                    self._connect(process, connection)

        timeline.after(duration_ns, start)

    def cut(self, process: Peer, duration_ns: int) -> None:
        """The process loses its connection, and knows."""
        connection = self._connections[process]
        connection.cut_until_ns = self._timeline.now_ns + duration_ns
        self._break(process, connection)
        self._timeline.after(
            duration_ns, lambda: self._connect(process, self._connections[process])
        )

    def silence(self, process: Peer, duration_ns: int, *, mute: bool, deaf: bool) -> None:
        """Nothing gets out, or in, and the process does not know."""
        until_ns = self._timeline.now_ns + duration_ns
        connection = self._connections[process]
        if mute:
            connection.mute_until_ns = max(connection.mute_until_ns, until_ns)
        if deaf:
            connection.deaf_until_ns = max(connection.deaf_until_ns, until_ns)

    def _break(self, process: Peer, connection: _Connection) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        connection.number += 1
        if process.is_ready:
            process.run(process.life, process.on_disconnected)

    def _connect(self, process: Peer, connection: _Connection) -> None:
        """Soon, if nothing is in the way by then; whoever removes what is calls again."""
        timeline, number = self._timeline, connection.number

        def connect() -> None:
            is_stale = connection is not self._connections[process] or connection.number != number
            if is_stale or connection.is_open or not self.is_up or not process.is_up:
                return
            if timeline.now_ns < connection.cut_until_ns:
                return
            connection.is_open, connection.opened_at_ns = True, timeline.now_ns
            on_open, connection.on_open = connection.on_open, process.on_reconnected
            process.run(process.life, on_open)
            while connection.pending and connection.is_open:
                connection.pending.popleft()()

        timeline.after(self._random.randrange(RECONNECT_MAX_NS), connect)

    def _send(self, process: Peer, at_server: Action) -> None:
        """From a process to the server."""
        connection = self._connections[process]
        if not connection.is_open:
            if len(connection.pending) < PENDING_MAX:
                connection.pending.append(lambda: self._send(process, at_server))
            return
        number, now_ns = connection.number, self._timeline.now_ns

        def arrive() -> None:
            if connection.number == number:
                at_server()
            else:
                self.num_lost += 1

        mute_ns = connection.mute_until_ns - now_ns
        if mute_ns > 0:
            self._timeline.after(mute_ns, arrive)
        else:
            at_server()

    def _route(
        self,
        pattern: str,
        ident: str,
        message: object,
        reply_from: Callable[[Peer, object], None] | None,
        is_for_one: bool = False,
    ) -> bool:
        """From the server to all who listen, or to one of them; whether anybody does."""
        if not self.is_up:
            return False
        heard = False
        listeners = self._listeners.get((pattern, ident), [])
        if is_for_one and len(listeners) > 1:
            there = [each for each in listeners if self._connections[each.process].is_open]
            listeners = [self._random.choice(there)] if there else []
        for subscription in listeners:
            process = subscription.process
            if not self._connections[process].is_open:
                continue
            heard = True
            self._deliver(process, _handling(subscription, message, reply_from))
        return heard

    def arrive(self, arrival: "_Arrival") -> None:
        """Something is at its process, if that has not died and not lost its connection."""
        connection, process = arrival.connection, arrival.process
        if connection.number != arrival.number or process.life != arrival.life:
            self.num_lost += 1
            return
        deaf_ns = connection.deaf_until_ns - self._timeline.now_ns
        if deaf_ns > 0:
            self._timeline.after(deaf_ns, arrival)
        else:
            arrival.action()

    def _deliver(self, process: Peer, action: Action) -> None:
        """From the server to a process, badly."""
        timeline, weather, random = self._timeline, self.weather, self._random
        connection = self._connections[process]
        if not connection.is_open or (weather.loss and random.random() < weather.loss):
            self.num_lost += 1
            return
        arrive = _Arrival(self, process, connection, connection.number, process.life, action)
        now_ns = timeline.now_ns
        if weather.slow and random.random() < weather.slow:  # others overtake it
            timeline.after(random.randrange(10 * weather.delay_max_ns), arrive)
        else:
            at_ns = max(now_ns + random.randrange(weather.delay_max_ns), connection.last_at_ns)
            connection.last_at_ns = at_ns
            timeline.after(at_ns - now_ns, arrive)
        if weather.duplication and random.random() < weather.duplication:
            timeline.after(random.randrange(10 * weather.delay_max_ns), arrive)


@dataclass(slots=True, eq=False)
class _Arrival:
    """What is on its way from the server to a process. (A closure that names itself would be
    garbage that only the collector finds.)
    """

    wires: Wires
    process: Peer
    connection: _Connection
    number: int
    life: int
    action: Action

    def __call__(self) -> None:
        self.wires.arrive(self)


def _handling(
    subscription: _Subscription,
    message: object,
    reply_from: Callable[[Peer, object], None] | None,
) -> Action:
    process, life, handler = subscription.process, subscription.life, subscription.handler

    def reply(answer: object) -> None:
        if reply_from is not None and process.is_up and process.life == life:
            reply_from(process, answer)

    return partial(process.run, life, partial(handler, message, reply))
