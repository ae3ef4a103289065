"""Fetch the beginning, compute the end: how much of each."""

from hypothesis import given
from hypothesis import strategies as st

from services.worker.core.effects import LoadPages, ReleaseTicket, TrimTicket
from services.worker.core.kv.fetching import WORTH, Supply, blocks_to_fetch
from services.worker.core.kv.staged import Staged
from shared.ids import TurnId
from shared.wire.messages import KvPlace
from tests.unit.worker.driver import (
    MS,
    NUM_LAYERS,
    Engine,
    keys_of,
    new_turn,
    of_kind,
    staged_blocks,
)

PROMPT = list(range(100, 141))  # ten blocks and a token
TURN = TurnId("t")
times = st.floats(0, 1e9, allow_subnormal=False)


@given(st.integers(1, 200), times, times, times, times, st.floats(0, 1e7))
def test_no_other_part_is_done_much_sooner_and_no_longer_one_as_soon(
    num_blocks: int, wait: float, source: float, link: float, rest: float, block: float
) -> None:
    supply = Supply(num_blocks=num_blocks, wait_ns=wait, source_ns=source, link_ns=link)

    def compute_ns(num: int) -> float:
        return rest + block * (num_blocks - num)

    done_ns = [max(supply.fetch_ns(num), compute_ns(num)) for num in range(num_blocks + 1)]
    chosen = blocks_to_fetch(supply, compute_ns)
    assert done_ns[chosen] <= WORTH * min(done_ns) + 1
    assert all(late_ns >= WORTH * min(done_ns) - 1 for late_ns in done_ns[chosen + 1 :])


def asked(prefill_tokens_per_s: float, source_bytes_per_s: float) -> Engine:
    """A turn asks the kvstore for its ten blocks, of 2 KiB each."""
    engine = Engine()
    engine.core.write_behind.connect(1)
    engine.core.estimates.prefill_tokens_per_s = prefill_tokens_per_s
    engine.core.estimates.on_source(source_bytes_per_s)
    engine.submit(new_turn("t", PROMPT))
    return engine


def answer(
    engine: Engine,
    ready_in_ns: list[int],
    num_from_disk: int = 20,
    num_here: int = 0,
    coming_from: KvPlace | None = None,
) -> None:
    made = staged_blocks(7, keys_of(PROMPT), num_from_disk)
    staged = Staged(
        7,
        made.keys,
        made.pages,
        made.generations,
        num_from_disk,
        epoch=1,
        ready_in_ns=ready_in_ns,
        num_here=num_here,
        coming_from=coming_from,
    )
    engine.keep(engine.core.on_staged(TURN, 1, staged, engine.now_ns))


def test_the_head_is_fetched_and_the_tail_computed_where_both_take_as_long() -> None:
    # A block takes 4 ms to compute and 4 ms to come from disk.
    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=512_000)
    answer(engine, [20 * MS, 40 * MS])
    (trim,) = of_kind(engine.effects, TrimTicket)
    assert trim == TrimTicket(7, 5)
    engine.plan()
    assert engine.core.running[0].num_computed == 20
    loads = [run for each in of_kind(engine.effects, LoadPages) for run in each.loads]
    assert [len(run.pool_pages) for run in loads] == [5] * NUM_LAYERS
    half = [engine.now_ns + ns for ns in (10 * MS, 20 * MS)]
    assert [run.ready_at_ns for run in loads] == half, "the other half is not read"


def test_a_queue_before_them_counts() -> None:
    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=512_000)
    answer(engine, [500 * MS, 540 * MS])
    assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(7)]
    plan = engine.plan()
    assert plan is not None and plan.rows()[0].start == 0, "all of it is computed"


def test_what_is_in_the_arena_already_is_taken_whole() -> None:
    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=1)
    answer(engine, [], num_from_disk=0)
    assert not of_kind(engine.effects, TrimTicket)
    plan = engine.plan()
    assert plan is not None and plan.rows()[0].start == 40


def test_a_head_that_is_in_the_arena_is_taken_whatever_its_tail_waits_for() -> None:
    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=512_000)
    answer(engine, [500 * MS, 540 * MS], num_from_disk=6, num_here=7)
    assert of_kind(engine.effects, TrimTicket) == [TrimTicket(7, 7)]
    plan = engine.plan()
    assert plan is not None and plan.rows()[0].start == 28


def test_before_the_first_prefill_what_is_promised_late_is_not_waited_for() -> None:
    engine = asked(prefill_tokens_per_s=0, source_bytes_per_s=1)
    answer(engine, [10**12, 10**12], num_here=3)
    assert of_kind(engine.effects, TrimTicket) == [TrimTicket(7, 3)]


def test_before_the_first_prefill_everything_else_is_fetched() -> None:
    engine = asked(prefill_tokens_per_s=0, source_bytes_per_s=1)
    answer(engine, [10**9, 10**9])
    assert engine.plan() is None, "but nobody waits in a pass for it"
    assert not [each for each in engine.effects if isinstance(each, TrimTicket | ReleaseTicket)]


def test_an_answer_tells_how_fast_pages_come() -> None:
    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=1)
    staged = Staged(7, [], [], [], source_bytes_per_s=123.0)
    engine.keep(engine.core.on_staged(TURN, 1, staged, engine.now_ns))
    assert engine.core.estimates.source_bytes_per_s == 123.0


def cached_in(engine: Engine) -> dict[KvPlace, int]:
    engine.plan()
    (turn,) = engine.core.running
    return turn.cache.cached_in(turn.num_prompt)


def test_a_turn_knows_where_its_history_was_when_it_came() -> None:
    engine = asked(prefill_tokens_per_s=1, source_bytes_per_s=512_000)
    answer(engine, [], num_from_disk=6, num_here=7, coming_from="disk")
    assert cached_in(engine) == {"host": 28, "disk": 12}

    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=512_000)
    answer(engine, [500 * MS, 540 * MS], num_from_disk=6, num_here=7, coming_from="peer")
    assert cached_in(engine) == {"host": 28}, "the rest is computed"

    engine = asked(prefill_tokens_per_s=1000, source_bytes_per_s=512_000)
    engine.keep(engine.core.on_staged(TURN, 1, None, engine.now_ns))
    assert cached_in(engine) == {}


def test_what_came_into_the_pool_meanwhile_was_there() -> None:
    turn = new_turn("t", PROMPT)
    turn.cache.num_cached = 40
    assert turn.cache.cached_in(turn.num_prompt) == {"pool": 40}
    turn.cache.found = {"pool": 2, "host": 3, "disk": 0}
    assert turn.cache.cached_in(turn.num_prompt) == {"pool": 28, "host": 12}
    turn.cache.num_cached = 12
    assert turn.cache.cached_in(turn.num_prompt) == {"pool": 8, "host": 4}
