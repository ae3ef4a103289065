"""NATS: who subscribes to what, what gets lost, how a connection behaves while the server is away.

A publish without a connection waits in a bounded buffer. What is in flight when a connection breaks
is lost. Payloads are opaque here: `SimClient` puts bytes on it as nats-py's client does, `Wires`
whole messages for simulated parties that are no services.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

from loadtest.sim.timeline import MS, Action, Timeline

RECONNECT_MAX_NS = 300 * MS
PENDING_BYTES_MAX = 2 * 1024 * 1024  # that wait in a client for its server, as nats-py has it
NO_RESPONDERS = {"Status": "503"}


class Peer(Protocol):
    """A process with one connection.

    Attributes:
        life: counts its starts.
        is_ready: it had its first connection in this life.
        pending_bytes_max: that wait for the server.
    """

    is_up: bool
    is_ready: bool
    life: int
    pending_bytes_max: int

    @property
    def is_frozen(self) -> bool: ...

    def run(self, life: int, action: Action) -> None:
        """Do it now or as soon as it stands still no more, if this life still lasts."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""

    def on_disconnected(self) -> None:
        """Its connection broke."""

    def on_reconnected(self) -> None:
        """Its connection is back."""


@dataclass(frozen=True, slots=True)
class Message:
    """What the server passes on.

    Attributes:
        reply: subject of the answer; empty: none is expected.
    """

    subject: str
    data: Any
    reply: str = ""
    headers: dict[str, str] | None = None


Deliver = Callable[[Message], None]
Tap = Callable[[Peer, Message], None]


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription of one life of a process."""

    process: Peer
    life: int
    subject: str
    queue: str
    deliver: Deliver


@dataclass(slots=True)
class _Connection:
    """Attributes:
    on_open: called when it is open (again).
    number: counts connections of this life; what was in flight on an earlier one is lost.
    opened_at_ns: when the latest one was.
    cut_until_ns: it cannot connect before.
    mute_until_ns, deaf_until_ns: nothing gets out, or in, before; the process does not know.
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
    pending_bytes: int = 0


@dataclass(slots=True)
class Weather:
    """How bad the network is now.

    Attributes:
        loss, duplication, slow: shares of messages that are lost, doubled, or ten times as late.
        garbled: share of messages whose payload is replaced by one of a later release.
        delay_max_ns: each takes a random time up to this.
    """

    loss: float = 0.0
    duplication: float = 0.0
    slow: float = 0.0
    garbled: float = 0.0
    delay_max_ns: int = 2 * MS


class Network:
    """The server and everybody's connection to it.

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
        self._taps: dict[str, list[Tap]] = {}
        self._connections: dict[Peer, _Connection] = {}
        self._listeners: dict[str, list[Subscription]] = {}
        self._num_inboxes = 0

    def tap(self, word: str, tap: Tap) -> None:
        """Call `tap` with everything that is published on subjects with this last word."""
        self._taps.setdefault(word, []).append(tap)

    def join(self, process: Peer, on_first: Action) -> None:
        """A process starts; `on_first` is called when it has its first connection."""
        old = self._connections.get(process)
        new = _Connection(on_open=on_first, is_open=False)
        if old is not None:
            new.cut_until_ns = old.cut_until_ns
        self._connections[process] = new
        self._connect(process, new)

    def leave(self, process: Peer) -> None:
        """A process died, or closed its connection."""
        connection = self._connections[process]
        connection.is_open = False
        connection.number += 1
        for subject, subscriptions in list(self._listeners.items()):
            left = [each for each in subscriptions if each.process is not process]
            if left:
                self._listeners[subject] = left
            else:
                del self._listeners[subject]

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

    def has_room(self, process: Peer, num_bytes: int) -> bool:
        """Whether so much more may wait for the server while it is away."""
        connection = self._connections[process]
        waiting = connection.pending_bytes + num_bytes
        return connection.is_open or waiting <= process.pending_bytes_max

    def new_inbox(self) -> str:
        """A subject that no other has."""
        self._num_inboxes += 1
        return f"_INBOX.{self._num_inboxes}"

    def subscribe(
        self, process: Peer, subject: str, deliver: Deliver, queue: str = ""
    ) -> Subscription:
        """Listen, for this life."""
        subscription = Subscription(process, process.life, subject, queue, deliver)
        self._listeners.setdefault(subject, []).append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Listen no more."""
        listeners = self._listeners.get(subscription.subject, [])
        if subscription in listeners:
            listeners.remove(subscription)
            if not listeners:
                del self._listeners[subscription.subject]

    def publish(self, process: Peer, message: Message, num_bytes: int = 0) -> None:
        """Send to all subscribers at the time when it reaches the server; without any, a sender
        that waits for a reply gets a message that says so.
        """
        for tap in self._taps.get(message.subject.rpartition(".")[2], ()):
            tap(process, message)
        self._send(process, partial(self._at_server, process, message), num_bytes)

    def ask_server(self, process: Peer, question: Callable[[], Action | None]) -> None:
        """Ask the server itself: `question` runs there, and what it returns runs at the process
        when the answer arrives.
        """
        life = process.life

        def at_server() -> None:
            answer = question() if self.is_up else None
            if answer is not None:
                self._deliver(process, partial(process.run, life, answer))

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
        """Connect soon, if no fault prevents it by then; the end of a fault calls this again."""
        timeline, number = self._timeline, connection.number

        def connect() -> None:
            is_stale = connection is not self._connections[process] or connection.number != number
            if is_stale or connection.is_open or not self.is_up or not process.is_up:
                return
            if timeline.now_ns < connection.cut_until_ns:
                return
            if process.is_frozen:  # it tries again when it runs
                timeline.after(RECONNECT_MAX_NS, connect)
                return
            connection.is_open, connection.opened_at_ns = True, timeline.now_ns
            on_open, connection.on_open = connection.on_open, process.on_reconnected
            process.run(process.life, on_open)
            connection.pending_bytes = 0
            while connection.pending and connection.is_open:
                connection.pending.popleft()()

        timeline.after(self._random.randrange(RECONNECT_MAX_NS), connect)

    def _send(self, process: Peer, at_server: Action, num_bytes: int = 0) -> None:
        """From a process to the server."""
        connection = self._connections[process]
        if not connection.is_open:
            if self.has_room(process, num_bytes):
                connection.pending_bytes += num_bytes
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

    def _at_server(self, process: Peer, message: Message) -> None:
        if not self.is_up:
            return
        there = [
            each
            for each in self._listeners.get(message.subject, ())
            if self._connections[each.process].is_open
        ]
        for each in self._one_of_each_queue(there):
            weather = self.weather
            passed = message
            if weather.garbled and self._random.random() < weather.garbled:
                passed = Message(message.subject, b'{"of":"a later release"}', message.reply)
            self._deliver(
                each.process, partial(each.process.run, each.life, partial(each.deliver, passed))
            )
        if not there and message.reply:
            self._at_server(process, Message(message.reply, b"", "", NO_RESPONDERS))

    def _one_of_each_queue(self, there: list[Subscription]) -> Sequence[Subscription]:
        if len(there) <= 1 or not any(each.queue for each in there):
            return there
        groups: dict[str, list[Subscription]] = {}
        for each in there:
            groups.setdefault(each.queue, []).append(each)
        chosen = groups.pop("", [])
        return [*chosen, *(self._random.choice(members) for members in groups.values())]

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
    """What is in flight from the server to a process. (A closure that names itself would be garbage
    that only the collector finds.)
    """

    network: Network
    process: Peer
    connection: _Connection
    number: int
    life: int
    action: Action

    def __call__(self) -> None:
        self.network.arrive(self)
