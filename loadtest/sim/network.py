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

from loadtest.sim.timeline import MS, SECOND, Action, Timeline

RECONNECT_MAX_NS = 300 * MS
PENDING_BYTES_MAX = 2 * 1024 * 1024  # that wait in a client for its server, as nats-py has it
NO_RESPONDERS = {"Status": "503"}
DISTURBED_MAX = 16  # remembered disturbances of a process
DEATH_NS = 10 * SECOND


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


@dataclass(slots=True)
class Message:
    """What the server passes on; no receiver changes it.

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
    cut_until_ns: it cannot connect before.
    mute_until_ns, deaf_until_ns: nothing gets out, or in, before; the process does not know.
    """

    on_open: Action
    is_open: bool
    number: int = 0
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
        self._disturbed: dict[Peer, deque[tuple[int, int]]] = {}
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
        self.note_disturbed(process, DEATH_NS)
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
        connection = self._connections[process]
        if connection.is_open and connection.mute_until_ns <= self._timeline.now_ns:
            self._at_server(message)
        else:
            self._send_late(process, partial(self._at_server, message), num_bytes)

    def ask_server(self, process: Peer, question: Callable[[], Action | None]) -> None:
        """Ask the server itself: `question` runs there, and what it returns runs at the process
        when the answer arrives.
        """
        life = process.life

        def at_server() -> None:
            answer = question() if self.is_up else None
            if answer is not None:
                self._deliver(process, life, answer)

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
        self.note_disturbed(process, duration_ns + RECONNECT_MAX_NS)
        self._break(process, connection)
        self._timeline.after(
            duration_ns, lambda: self._connect(process, self._connections[process])
        )

    def silence(self, process: Peer, duration_ns: int, *, mute: bool, deaf: bool) -> None:
        """Nothing gets out, or in, and the process does not know."""
        until_ns = self._timeline.now_ns + duration_ns
        self.note_disturbed(process, duration_ns)
        connection = self._connections[process]
        if mute:
            connection.mute_until_ns = max(connection.mute_until_ns, until_ns)
        if deaf:
            connection.deaf_until_ns = max(connection.deaf_until_ns, until_ns)

    def note_disturbed(self, process: Peer, duration_ns: int) -> None:
        """For so long something is wrong with this process, and not with the server."""
        now_ns = self._timeline.now_ns
        self._note(process, now_ns, now_ns + duration_ns)

    def _note(self, process: Peer, begin_ns: int, end_ns: int) -> None:
        noted = self._disturbed.setdefault(process, deque(maxlen=DISTURBED_MAX))
        noted.append((begin_ns, end_ns))

    def disturbed_ns(self, process: Peer, within_ns: int) -> int:
        """For how much of the last `within_ns` something was wrong with a process, at most."""
        now_ns = self._timeline.now_ns
        since_ns = now_ns - within_ns
        return sum(
            max(min(end_ns, now_ns) - max(begin_ns, since_ns), 0)
            for begin_ns, end_ns in self._disturbed.get(process, ())
        )

    def listener(self, subject: str) -> Peer | None:
        """The process that listens to a subject; the first, if there are several."""
        found = self._listeners.get(subject)
        return found[0].process if found else None

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
            connection.is_open = True
            if process.life > 1 or connection.number:  # it was there before
                self._note(process, timeline.now_ns - DEATH_NS, timeline.now_ns)
            on_open, connection.on_open = connection.on_open, process.on_reconnected
            process.run(process.life, on_open)
            connection.pending_bytes = 0
            while connection.pending and connection.is_open:
                connection.pending.popleft()()

        timeline.after(self._random.randrange(RECONNECT_MAX_NS), connect)

    def _send(self, process: Peer, at_server: Action, num_bytes: int = 0) -> None:
        """From a process to the server."""
        connection = self._connections[process]
        if connection.is_open and connection.mute_until_ns <= self._timeline.now_ns:
            at_server()
        else:
            self._send_late(process, at_server, num_bytes)

    def _send_late(self, process: Peer, at_server: Action, num_bytes: int) -> None:
        """What is sent without a connection, or over one that is mute."""
        connection = self._connections[process]
        if not connection.is_open:
            if self.has_room(process, num_bytes):
                connection.pending_bytes += num_bytes
                connection.pending.append(partial(self._send, process, at_server))
            return
        number = connection.number

        def arrive() -> None:
            if connection.number == number:
                at_server()
            else:
                self.num_lost += 1

        self._timeline.after(connection.mute_until_ns - self._timeline.now_ns, arrive)

    def _at_server(self, message: Message) -> None:
        if not self.is_up:
            return
        connections = self._connections
        there = [
            each
            for each in self._listeners.get(message.subject, ())
            if connections[each.process].is_open
        ]
        garbled = self.weather.garbled
        for each in self._one_of_each_queue(there) if len(there) > 1 else there:
            passed = message
            if garbled and self._random.random() < garbled:
                passed = Message(message.subject, b'{"of":"a later release"}', message.reply)
            self._deliver(each.process, each.life, partial(each.deliver, passed))
        if not there and message.reply:
            self._at_server(Message(message.reply, b"", "", NO_RESPONDERS))

    def _one_of_each_queue(self, there: list[Subscription]) -> Sequence[Subscription]:
        if not any(each.queue for each in there):
            return there
        groups: dict[str, list[Subscription]] = {}
        for each in there:
            groups.setdefault(each.queue, []).append(each)
        chosen = groups.pop("", [])
        return [*chosen, *(self._random.choice(members) for members in groups.values())]

    def _deliver(self, process: Peer, life: int, action: Action) -> None:
        """From the server to this life of a process, badly."""
        timeline, weather, random = self._timeline, self.weather, self._random.random
        connection = self._connections[process]
        if not connection.is_open or (weather.loss and random() < weather.loss):
            self.num_lost += 1
            return
        arrive = partial(self._arrive, connection, connection.number, process, life, action)
        now_ns, delay_max_ns = timeline.now_ns, weather.delay_max_ns
        if weather.slow and random() < weather.slow:  # others overtake it
            timeline.after(int(random() * 10 * delay_max_ns), arrive)
        else:
            at_ns = max(now_ns + int(random() * delay_max_ns), connection.last_at_ns)
            connection.last_at_ns = at_ns
            timeline.after(at_ns - now_ns, arrive)
        if weather.duplication and random() < weather.duplication:
            timeline.after(int(random() * 10 * delay_max_ns), arrive)

    def _arrive(
        self, connection: _Connection, number: int, process: Peer, life: int, action: Action
    ) -> None:
        """Something is at its process, if that has not died and not lost its connection."""
        if connection.number != number or process.life != life:
            self.num_lost += 1
            return
        deaf_ns = connection.deaf_until_ns - self._timeline.now_ns
        if deaf_ns > 0:
            late = partial(self._arrive, connection, number, process, life, action)
            self._timeline.after(deaf_ns, late)
        else:
            process.run(life, action)
