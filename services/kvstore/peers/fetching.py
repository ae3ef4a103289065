"""The client's side of one connection: requests out, pages in, each checked before its word says
that it is there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.kvstore.core import LoadOutcome
from services.kvstore.peers.fetches import Part
from services.kvstore.peers.requests import Requests
from services.kvstore.peers.stream import Broken, Stream, Views, after, send_all
from services.kvstore.peers.wire import (
    ANSWER_BYTES,
    KEPT,
    KEYS_MAX,
    SLOWEST_BYTES_PER_S,
    VERDICT_BYTES,
    VOID,
    Answer,
    Status,
    WireError,
    pack_request,
    unpack_answer,
    value_bytes,
)
from services.kvstore.tiers.values import HEADER_BYTES, BadValue, read_name
from shared.arena import checksum

_OUTCOMES = {
    Status.MISSING: LoadOutcome.MISSING,
    Status.LATE: LoadOutcome.FAILED,
    Status.UNREAD: LoadOutcome.FAILED,
}


@dataclass(slots=True)
class ClientCounts:
    """What one of a client's connections has seen; written by its thread.

    Attributes:
        num_connections: that were made.
        num_broken: that broke, or could not be made.
        num_refused: times that the peer lied: wrong secret, another page, bytes that mean nothing.
        num_corrupt: pages whose bytes were not the ones that were stored.
        num_resumed: pages that were asked for again after a connection broke.
        num_late: orders that were not finished in time.
        num_pages, bytes_received: of pages that came and are right.
    """

    num_connections: int = 0
    num_broken: int = 0
    num_refused: int = 0
    num_corrupt: int = 0
    num_resumed: int = 0
    num_late: int = 0
    num_pages: int = 0
    bytes_received: int = 0


class Fetching:
    """Fetches from one peer that has proven itself, while anything is wanted.

    Args:
        look_up: called between pages and while waiting: takes in new orders and ends late ones.

    Raises, from every call:
        Broken: the connection did, the peer stands still, or `look_up` says so.
        WireError: the peer lies.
    """

    def __init__(
        self,
        stream: Stream,
        requests: Requests,
        counts: ClientCounts,
        look_up: Callable[[], None],
        stall_s: float,
    ) -> None:
        self._stream = stream
        self._requests = requests
        self._counts = counts
        self._look_up = look_up
        self._stall_s = stall_s
        self._frame = memoryview(bytearray(ANSWER_BYTES))
        headers = memoryview(bytearray(KEYS_MAX * HEADER_BYTES))
        self._headers = [
            headers[at : at + HEADER_BYTES] for at in range(0, len(headers), HEADER_BYTES)
        ]
        self._verdict = memoryview(bytearray(VERDICT_BYTES))
        self._nowhere = memoryview(b"")
        self._can_ask = True

    def run(self) -> None:
        """Until nothing is requested."""
        self._look_up()
        self._ask()
        while self._requests.asked:
            self._hear()
            self._look_up()
            self._ask()

    def _ask(self) -> None:
        """For as much as there is room for. If that breaks, what the peer has sent before is read
        all the same; then that breaks, too.
        """
        now_s = time.monotonic()
        while self._can_ask and (request := self._requests.next_request(now_s)) is not None:
            try:
                send_all(self._stream, [pack_request(request)], now_s + self._stall_s)
            except Broken:
                self._can_ask = False

    def _hear(self) -> None:
        """One answer and what follows it."""
        self._receive([self._frame])
        answer = unpack_answer(self._frame)
        part = self._requests.asked.get(answer.number)
        if part is None:
            raise WireError(f"an answer to request {answer.number}, which was not made")
        if answer.first != part.next or answer.count > part.num_left:
            raise WireError("an answer for other pages than are next")
        if (outcome := _OUTCOMES.get(answer.status)) is None:
            self._hear_pages(answer, part)
            return
        for _ in range(answer.count):
            self._requests.settle(answer.number, outcome)

    def _hear_pages(self, answer: Answer, part: Part) -> None:
        """Receive what an answer promises by as few calls as it comes in; judge each page as soon
        as it is whole. Once its order is over, nothing is written into the arena any more.
        """
        memories = None if part.is_over else self._requests.memories(part, answer.count)
        each_bytes = value_bytes(part.reads.page_bytes)
        left: Views = []
        for views in zip(self._headers, memories or (), strict=False):
            left += views
        if answer.status is Status.JUDGED:
            each_bytes += VERDICT_BYTES
            left.append(self._verdict)
        num_bytes = answer.count * each_bytes
        quiet_until_s = time.monotonic() + self._stall_s
        until_s = quiet_until_s + num_bytes / SLOWEST_BYTES_PER_S
        num_come = num_judged = 0
        while True:
            if memories is None:
                left = [self._nothing(num_bytes - num_come)]
            num_new = self._stream.receive(left)
            num_come += num_new
            for at in range(num_judged, num_come // each_bytes):
                memory = None if memories is None or part.is_over else memories[at]
                self._judge(answer, part, self._headers[at], memory)
            num_judged = num_come // each_bytes
            if num_come == num_bytes:
                return
            left = after(left, num_new)
            if num_new:
                quiet_until_s = time.monotonic() + self._stall_s
            self._wait(min(until_s, quiet_until_s))
            if part.is_over:
                memories = None

    def _judge(
        self, answer: Answer, part: Part, raw_header: memoryview, memory: memoryview | None
    ) -> None:
        """Publish a page that has come, if it is the right one; without `memory` its order is over
        and reported.
        """
        if memory is None:
            self._requests.settle(answer.number, LoadOutcome.FAILED)
            return
        if answer.status is Status.JUDGED and self._verdict != KEPT:
            if self._verdict != VOID:
                raise WireError("a page without a verdict")
            self._requests.settle(answer.number, LoadOutcome.MISSING)
            return
        try:
            name = read_name(raw_header)
        except BadValue:
            self._refuse(answer)
            return
        if name[:3] != (part.key, part.reads.layer, part.reads.page_bytes):
            self._refuse(answer)
            raise WireError("another page than the one that was asked for")
        if checksum(memory) != name.checksum:
            self._refuse(answer)
            return
        self._counts.num_pages += 1
        self._counts.bytes_received += part.reads.page_bytes
        self._requests.settle(answer.number, LoadOutcome.READY, bytes(raw_header))

    def _refuse(self, answer: Answer) -> None:
        self._counts.num_corrupt += 1
        self._requests.settle(answer.number, LoadOutcome.CORRUPT)

    def _receive(self, views: Views) -> None:
        until_s = time.monotonic() + self._stall_s
        while views := after(views, self._stream.receive(views)):
            self._wait(until_s)

    def _wait(self, until_s: float) -> None:
        """Something is still to come."""
        self._look_up()
        self._ask()
        if time.monotonic() > until_s:
            raise Broken("the peer stands still")

    def _nothing(self, num_bytes: int) -> memoryview:
        """Memory for bytes that are not wanted any more."""
        if len(self._nowhere) < num_bytes:
            self._nowhere = memoryview(bytearray(num_bytes))
        return self._nowhere[:num_bytes]
