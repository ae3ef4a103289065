"""The client's side of one connection: requests out, pages in, each checked before its word says
that it is there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.kvstore.core import LoadOutcome
from services.kvstore.peers.fetches import Fetches, Part
from services.kvstore.peers.stream import Broken, Stream, Views, after, send_all
from services.kvstore.peers.wire import (
    ANSWER_BYTES,
    KEPT,
    SLOWEST_BYTES_PER_S,
    VERDICT_BYTES,
    VOID,
    Status,
    WireError,
    pack_request,
    unpack_answer,
)
from services.kvstore.values import HEADER_BYTES, BadValue, unpack_header
from shared.arena import checksum

_OUTCOMES = {
    Status.MISSING: LoadOutcome.MISSING,
    Status.LATE: LoadOutcome.FAILED,
    Status.UNREAD: LoadOutcome.FAILED,
}


@dataclass(slots=True)
class ClientCounts:
    """What a client of one peer has seen; written by its thread.

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
        fetches: Fetches,
        counts: ClientCounts,
        look_up: Callable[[], None],
        stall_s: float,
    ) -> None:
        self._stream = stream
        self._fetches = fetches
        self._counts = counts
        self._look_up = look_up
        self._stall_s = stall_s
        self._frame = memoryview(bytearray(ANSWER_BYTES))
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._verdict = memoryview(bytearray(VERDICT_BYTES))
        self._nowhere = memoryview(b"")

    def run(self) -> None:
        """Until nothing is asked for."""
        self._look_up()
        self._ask()
        while self._fetches.asked:
            self._hear()
            self._look_up()
            self._ask()

    def _ask(self) -> None:
        now_s = time.monotonic()
        while (request := self._fetches.next_request(now_s)) is not None:
            send_all(self._stream, [pack_request(request)], now_s + self._stall_s)

    def _hear(self) -> None:
        """One answer and what follows it."""
        self._receive([self._frame])
        answer = unpack_answer(self._frame)
        part = self._fetches.asked.get(answer.number)
        if part is None:
            raise WireError(f"an answer to request {answer.number}, which nobody made")
        if answer.first != part.next or answer.count > part.num_left:
            raise WireError("an answer for other pages than are next")
        for _ in range(answer.count):
            outcome = _OUTCOMES.get(answer.status)
            if outcome is None:
                self._hear_page(answer.number, part, is_judged=answer.status is Status.JUDGED)
            else:
                self._fetches.settle(answer.number, outcome)

    def _hear_page(self, number: int, part: Part, *, is_judged: bool) -> None:
        memory = self._receive_page(part)
        if is_judged:
            self._receive([self._verdict])
            if self._verdict not in (KEPT, VOID):
                raise WireError("a page without a verdict")
        if memory is None or part.is_over:
            self._fetches.settle(number, LoadOutcome.FAILED)  # as it has been reported already
        elif is_judged and self._verdict == VOID:
            self._fetches.settle(number, LoadOutcome.MISSING)
        else:
            self._judge(number, part, memory)

    def _judge(self, number: int, part: Part, memory: memoryview) -> None:
        """Publish the page that has come, if it is the right one."""
        try:
            header = unpack_header(self._header)
        except BadValue:
            self._refuse(number)
            return
        wanted = (part.key, part.reads.layer, part.reads.page_bytes)
        if (header.key, header.layer, header.page_bytes) != wanted:
            self._refuse(number)
            raise WireError("another page than the one that was asked for")
        if checksum(memory) != header.checksum:
            self._refuse(number)
            return
        self._counts.num_pages += 1
        self._counts.bytes_received += len(memory)
        self._fetches.settle(number, LoadOutcome.READY, header)

    def _refuse(self, number: int) -> None:
        self._counts.num_corrupt += 1
        self._fetches.settle(number, LoadOutcome.CORRUPT)

    def _receive(self, views: Views) -> None:
        until_s = time.monotonic() + self._stall_s
        while views := after(views, self._stream.receive(views)):
            self._wait(until_s)

    def _receive_page(self, part: Part) -> memoryview | None:
        """The next page's header, and the page into the arena, whose memory is returned; None if
        the order was over before all of it had come. From then on nothing is written there.
        """
        memory: memoryview | None = None
        num_bytes = part.reads.page_bytes
        if not part.is_over:
            memory = self._fetches.memory(part)
        left = [self._header, self._nothing(num_bytes) if memory is None else memory]
        until_s = time.monotonic() + self._stall_s + num_bytes / SLOWEST_BYTES_PER_S
        while left := after(left, self._stream.receive(left)):
            self._wait(until_s)
            if memory is not None and part.is_over:
                memory = None
                left = [self._nothing(sum(map(len, left)))]
        return memory

    def _wait(self, until_s: float) -> None:
        """Something is still to come."""
        self._look_up()
        self._ask()
        if time.monotonic() > until_s:
            raise Broken("the peer stands still")

    def _nothing(self, num_bytes: int) -> memoryview:
        """Memory for bytes that nobody wants any more."""
        if len(self._nowhere) < num_bytes:
            self._nowhere = memoryview(bytearray(num_bytes))
        return self._nowhere[:num_bytes]
