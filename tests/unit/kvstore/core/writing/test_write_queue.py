"""When blocks are written to the disk: behind reads, but not for ever, and never for the dead."""

import pytest

from services.kvstore.core.base.effects import DiskWrite, Effect, WriteBlocks
from services.kvstore.core.base.store_limits import COPY_REST_NS, WAIT_NS
from services.kvstore.core.writing.write_queue import (
    COPY_WAITING_BYTES,
    COPY_WAITS,
    MUST,
    NEW_WAITING_BYTES,
    SENT_BYTES,
    UNKNOWN,
    WriteQueue,
)
from shared.blocks import NO_PARENT, BlockKey

MIB = 1024**2
SECOND = 1_000_000_000


def write(number: int, parent: int | None = None, num_bytes: int = MIB) -> DiskWrite:
    keys = [NO_PARENT if at is None else BlockKey(bytes([at]) * 32) for at in (number, parent)]
    return DiskWrite(number, keys[0], keys[1], [0], "f", num_bytes // 2, [0, 1], [0, 0])


def worth_one(_: DiskWrite) -> float:
    return 1.0


def sent(
    queue: WriteQueue, now_ns: int, *, is_reading: bool = False, dead: int | None = None
) -> list[int]:
    effects: list[Effect] = []
    queue.send(now_ns, is_reading, 0, lambda each: each.block_id != dead, worth_one, effects)
    return [
        each.block_id
        for effect in effects
        if isinstance(effect, WriteBlocks)
        for each in effect.writes
    ]


def test_what_is_new_is_written_at_once_unless_something_is_read() -> None:
    queue = WriteQueue(0.0)
    queue.add([write(1)], 0)
    assert sent(queue, 0) == [1]
    queue.add([write(2)], 0)
    assert not sent(queue, WAIT_NS - 1, is_reading=True)
    assert sent(queue, WAIT_NS, is_reading=True) == [2]
    queue.add([write(3)], 0)
    assert not sent(queue, 1, is_reading=True)
    assert sent(queue, 1) == [3]


def test_copies_rest_and_go_behind_what_is_new() -> None:
    queue = WriteQueue(0.0)
    queue.add_copies([write(1)], 0)
    queue.add([write(2)], 0)
    assert sent(queue, COPY_REST_NS - 1) == [2]
    assert not sent(queue, COPY_REST_NS, is_reading=True)
    assert sent(queue, COPY_REST_NS) == [1]
    queue.add_copies([write(3)], 0)
    assert not sent(queue, COPY_WAITS * WAIT_NS - 1, is_reading=True)
    assert sent(queue, COPY_WAITS * WAIT_NS, is_reading=True) == [3]


def test_a_copy_is_written_before_what_continues_it() -> None:
    queue = WriteQueue(0.0)
    queue.add_copies([write(1), write(2, 1)], 0)
    queue.add([write(9, 8)], 0)
    assert sent(queue, 1) == [9]
    queue.add([write(3, 2)], 1)
    assert sent(queue, 1) == [1, 2, 3]


@pytest.mark.parametrize("is_copy", [False, True])
def test_the_arena_does_not_fill_with_what_waits(is_copy: bool) -> None:
    queue = WriteQueue(0.0)
    room = COPY_WAITING_BYTES if is_copy else NEW_WAITING_BYTES
    add = queue.add_copies if is_copy else queue.add
    add([write(number) for number in range(room // MIB)], 0)
    assert not sent(queue, 0, is_reading=True)
    add([write(200)], 0)
    assert sent(queue, 0, is_reading=True) == [0]


def test_the_writer_has_only_so_much_at_a_time() -> None:
    queue = WriteQueue(0.0)
    num = SENT_BYTES // MIB
    queue.add([write(number) for number in range(num + 5)], 0)
    assert sent(queue, 0) == list(range(num))
    assert not sent(queue, 10 * SECOND)
    queue.on_written(0)
    queue.on_written(0)
    assert sent(queue, 0) == [num]


def test_a_budget_is_kept_and_what_nobody_wants_costs_nothing() -> None:
    queue = WriteQueue(float(MIB))
    queue.add([write(number) for number in range(4)], 0)
    assert sent(queue, 100 * SECOND, dead=0) == [1, 2], "a second was saved up"
    assert not sent(queue, 101 * SECOND - 1)
    assert sent(queue, 101 * SECOND) == [3]
    assert not len(queue)


def test_a_budget_does_not_fill_the_arena() -> None:
    """What is new goes whatever it is; copies are elsewhere, and the last are not written at all:
    the others are what they continue."""
    queue = WriteQueue(1.0)
    queue.add([write(0)], 0)
    assert sent(queue, SECOND) == [0]
    num_new, num_copies = NEW_WAITING_BYTES // MIB, COPY_WAITING_BYTES // MIB
    queue.add([write(number) for number in range(1, num_new + 3)], SECOND)
    queue.add_copies([write(number, num_bytes=8 * MIB) for number in range(100, 135)], SECOND)
    effects: list[Effect] = []
    given_up = queue.send(2 * SECOND, False, 0, lambda each: True, worth_one, effects)
    assert [
        [each.block_id for each in e.writes] for e in effects if isinstance(e, WriteBlocks)
    ] == [[1, 2]]
    assert [each.block_id for each in given_up] == [134, 133, 132]
    assert len(queue) == num_new + num_copies // 8


def test_a_large_arena_has_room_for_sessions_of_large_models() -> None:
    """One session of an 8B model is more than all that waits of a small one's."""
    queue, effects, num = WriteQueue(1.0), list[Effect](), 4 * COPY_WAITING_BYTES // (8 * MIB)
    queue.add_copies([write(number % 256, num_bytes=8 * MIB) for number in range(num)], 0)
    arena_bytes = 8 * 4 * COPY_WAITING_BYTES
    assert not queue.send(0, False, arena_bytes, lambda each: True, worth_one, effects)
    assert len(queue) + sum(len(e.writes) for e in effects if isinstance(e, WriteBlocks)) == num
    assert queue.send(0, False, arena_bytes // 2, lambda each: True, worth_one, effects)


def test_a_stop_hands_over_everything() -> None:
    queue = WriteQueue(1.0)
    queue.add_copies([write(1)], 0)
    queue.add([write(number) for number in range(2, 200)], 0)
    effects: list[Effect] = []
    queue.flush(lambda each: each.block_id != 7, effects)
    assert [len(effect.writes) for effect in effects if isinstance(effect, WriteBlocks)] == [198]
    assert not len(queue)


@pytest.mark.parametrize(
    ("worths", "parents", "given_up"),
    [
        ([3, 1, 2, 1, 3, 3], [None] * 6, [3, 1]),  # of equal ones the last that came
        ([3, 1, 2, 2, 3, 3], [None, None, 1, None, None, None], [3, 2]),  # 1 leads to 2
        ([1, 1, 3, 1, 3, 3], [None, 0, 1, 2, None, None], [3, 5]),
        ([MUST, 1, MUST, MUST, MUST, MUST], [None] * 6, [1]),
        ([3, UNKNOWN, 1, UNKNOWN, 2, UNKNOWN], [None] * 6, [2, 4]),
    ],
)
def test_behind_a_slow_writer_what_is_worth_least_is_not_written(
    worths: list[float], parents: list[int | None], given_up: list[int]
) -> None:
    """As many bytes may wait as four blocks have."""
    queue, num_bytes = WriteQueue(0.0), NEW_WAITING_BYTES // 4
    queue.add([write(200, num_bytes=SENT_BYTES)], 0)
    assert sent(queue, 0) == [200]  # the writer has enough
    queue.add([write(at, parent, num_bytes) for at, parent in enumerate(parents)], 0)
    unwritten = queue.send(0, False, 0, lambda _: True, lambda each: worths[each.block_id], [])
    assert [each.block_id for each in unwritten] == given_up
    queue.on_written(200)
    assert sent(queue, 0)[0] == min(set(range(6)) - set(given_up))


def test_a_copy_does_not_wait_for_ever_behind_what_is_new() -> None:
    queue = WriteQueue(0.0)
    queue.add([write(200, num_bytes=SENT_BYTES)], 0)
    queue.add_copies([write(1)], 0)
    assert sent(queue, 0) == [200]
    late_ns = COPY_WAITS * WAIT_NS
    queue.add([write(2)], late_ns - WAIT_NS)
    queue.add([write(3)], late_ns)
    queue.on_written(200)
    assert sent(queue, late_ns) == [2, 1, 3]


@pytest.mark.parametrize(("worth", "share"), [(1.0, 8), (UNKNOWN, 2)])
def test_more_may_wait_where_nothing_is_known_of_it(worth: float, share: int) -> None:
    queue, arena_bytes = WriteQueue(0.0), 16 * NEW_WAITING_BYTES
    queue.add([write(200, num_bytes=SENT_BYTES)], 0)
    assert sent(queue, 0) == [200]
    queue.add([write(at, num_bytes=arena_bytes // 32) for at in range(32)], 0)
    unwritten = queue.send(0, False, arena_bytes, lambda _: True, lambda _: worth, [])
    assert len(queue) == 32 - len(unwritten) == 32 // share
