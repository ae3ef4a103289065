"""Blocks that wait to be written to the disk: reads go before them, and turns that are in a hurry.

What workers computed is on no disk yet; what came from elsewhere is, and can wait longer. Neither
waits for ever, and neither fills the arena, where its pages stay until they are written: above a
limit new blocks go whatever the budget, and where the disk is too slow for all, what is worth least
is not written, of equal blocks the last that came. The first are what those continue.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from operator import itemgetter
from sys import float_info

from services.kvstore.core.base.effects import DiskWrite, Effect, WriteBlocks
from services.kvstore.core.base.store_limits import COPY_REST_NS, SAVED_NS, WAIT_NS
from shared.blocks import BlockKey
from shared.line import Line

MUST = inf  # worth of what is written in any case
UNKNOWN = float_info.max
NEW_WAITING_BYTES = 32 * 1024 * 1024
COPY_WAITS = 5  # times as long as what is new, while something is read
COPY_WAITING_BYTES = 256 * 1024 * 1024  # above which they go at once
WAITING_SHARE = 0.125  # of the arena, that may wait at all, of what is new and of copies
UNKNOWN_SHARE = 0.5  # of what is new, where it is not known what it is worth
AGAIN_SHARE_MAX = 0.25  # of the arena, with what is written again
LOOKS = 4  # for what is worth least, while as much comes as may wait
SENT_BYTES = 64 * 1024 * 1024  # with the writer: what is deleted or read waits behind little


class WriteQueue:
    """Args:
    bytes_per_s: that are written, on average; 0: any number.
    wait_ns: that what is new waits at most, while something is read.
    copy_rest_ns: that a copy waits in any case.
    """

    def __init__(
        self, bytes_per_s: float, wait_ns: int = WAIT_NS, copy_rest_ns: int = COPY_REST_NS
    ) -> None:
        self._budget = Line(bytes_per_s or inf, SAVED_NS)
        self._wait_ns = wait_ns
        self._copy_rest_ns = copy_rest_ns
        self._new = _Waiting()
        self._copies = _Waiting()
        self._sent: dict[int, int] = {}  # bytes, by block
        self._num_bytes_sent = 0

    def __len__(self) -> int:
        return len(self._new.writes) + len(self._copies.writes)

    def add(self, writes: list[DiskWrite], now_ns: int) -> None:
        """These are on no disk. What they continue is written before them."""
        waiting = {write.key for _, write in self._copies.writes}
        if any(write.parent in waiting for write in writes):
            self._new.add(self._copies.take_all(), now_ns)
        self._new.add(writes, now_ns)

    def add_copies(self, writes: list[DiskWrite], now_ns: int) -> None:
        """These came from where they still are."""
        self._copies.add(writes, now_ns)

    def has_room_for_copies(self, num_bytes: int, arena_bytes: int) -> bool:
        """Whether so much more may wait that has been written before."""
        return self._copies.num_bytes + num_bytes <= int(AGAIN_SHARE_MAX * arena_bytes)

    def on_written(self, block_id: int) -> None:
        """The writer is done with a block."""
        self._num_bytes_sent -= self._sent.pop(block_id, 0)

    def send(
        self, now_ns: int, is_reading: bool, arena_bytes: int,
        is_wanted: Callable[[DiskWrite], bool], worth: Callable[[DiskWrite], float],
        effects: list[Effect],
    ) -> list[DiskWrite]:  # fmt: skip
        """Hand over what may be written now.

        Args:
            arena_bytes: that the arenas have room for.
            worth: of having it on disk, in any measure, `UNKNOWN` or `MUST`.

        Returns:
            Writes that are not wanted any more; they do not come again.
        """
        writes: list[DiskWrite] = []
        unwanted: list[DiskWrite] = []
        while self._num_bytes_sent < SENT_BYTES:
            if (write := self._next(now_ns, is_reading)) is None:
                break
            if not is_wanted(write):
                unwanted.append(write)
                continue
            writes.append(write)
            self._sent[write.block_id] = _bytes_of(write)
            self._num_bytes_sent += _bytes_of(write)
            self._budget.send(_bytes_of(write), now_ns)
        if writes:
            effects.append(WriteBlocks(writes))
        share, unknown_share = (int(a * arena_bytes) for a in (WAITING_SHARE, UNKNOWN_SHARE))
        unwanted += self._new.give_up(
            worth, max(NEW_WAITING_BYTES, share), max(NEW_WAITING_BYTES, unknown_share)
        )
        copies_max = max(COPY_WAITING_BYTES, share)
        unwanted += self._copies.give_up(worth, copies_max, copies_max)
        return unwanted

    def flush(self, is_wanted: Callable[[DiskWrite], bool], effects: list[Effect]) -> None:
        """Hand over all that waits: there will be no later."""
        waiting = [*self._new.take_all(), *self._copies.take_all()]
        if writes := [write for write in waiting if is_wanted(write)]:
            effects.append(WriteBlocks(writes))

    def _next(self, now_ns: int, is_reading: bool) -> DiskWrite | None:
        new, copies = self._new, self._copies
        rest_ns, wait_ns = self._copy_rest_ns, COPY_WAITS * self._wait_ns
        is_free = not self._budget.busy_ns(now_ns)
        may_copy = is_free and copies.may_go(
            now_ns, is_reading, rest_ns, wait_ns, COPY_WAITING_BYTES
        )
        if may_copy and copies.since_ns + wait_ns < new.since_ns + self._wait_ns:
            return copies.pop()
        if new.num_bytes > NEW_WAITING_BYTES:  # whatever the budget: it has no other copy
            return new.pop()
        if is_free and new.may_go(now_ns, is_reading, 0, self._wait_ns, NEW_WAITING_BYTES):
            return new.pop()
        return copies.pop() if may_copy else None


class _Waiting:
    """In the order in which they came."""

    def __init__(self) -> None:
        self.writes: deque[tuple[int, DiskWrite]] = deque()
        self.num_bytes = 0
        self._num_bytes_new = 0  # since it was last looked for what is worth least

    @property
    def since_ns(self) -> float:
        """When the first of them came."""
        return self.writes[0][0] if self.writes else inf

    def add(self, writes: list[DiskWrite], now_ns: int) -> None:
        num_bytes = sum(map(_bytes_of, writes))
        self.writes.extend((now_ns, write) for write in writes)
        self.num_bytes += num_bytes
        self._num_bytes_new += num_bytes

    def pop(self) -> DiskWrite:
        _, write = self.writes.popleft()
        self.num_bytes -= _bytes_of(write)
        return write

    def give_up(
        self, worth: Callable[[DiskWrite], float], bytes_max: int, unknown_max: int
    ) -> list[DiskWrite]:
        """Take out those that are worth least, of equal ones the last, until little more than
        `bytes_max` is left, or `unknown_max` of those of which it is unknown. What others here
        continue is worth as much as those: without it, they would be of no use.
        """
        if self.num_bytes <= bytes_max or self._num_bytes_new < bytes_max // LOOKS:
            return []
        self._num_bytes_new = 0
        worths: dict[BlockKey, float] = {}
        order: list[tuple[float, int, DiskWrite]] = []
        for back, (_, write) in enumerate(reversed(self.writes)):
            at_least = worths.get(write.key, 0.0)
            value = max(worth(write), at_least)
            worths[write.parent] = max(value, worths.get(write.parent, 0.0))
            order.append((value, back, write))
        given_up: dict[int, DiskWrite] = {}
        for value, _, write in sorted(order, key=itemgetter(0, 1)):
            if self.num_bytes <= (bytes_max if value < UNKNOWN else unknown_max) or value == MUST:
                break
            given_up[write.block_id] = write
            self.num_bytes -= _bytes_of(write)
        self.writes = deque(each for each in self.writes if each[1].block_id not in given_up)
        return list(given_up.values())

    def take_all(self) -> list[DiskWrite]:
        return [self.pop() for _ in range(len(self.writes))]

    def may_go(
        self, now_ns: int, is_reading: bool, rest_ns: int, wait_ns: int, bytes_max: int
    ) -> bool:
        """Whether the first may be written now."""
        if not self.writes:
            return False
        waited_ns = now_ns - self.since_ns
        is_due = waited_ns >= rest_ns and not is_reading
        return is_due or waited_ns >= wait_ns or self.num_bytes > bytes_max


def _bytes_of(write: DiskWrite) -> int:
    return len(write.pages) * write.page_bytes
