from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.core.engine.admission import LATE_SHARE, RESERVE_MIN, Punctuality
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import AdmissionName
from services.worker.core.step import Sampled, StepResult
from services.worker.core.turns.turn import Turn, TurnState
from shared.wire.messages import SamplingParams
from tests.unit.worker.driver import (
    MS,
    NUM_LAYERS,
    PLAIN_TOKEN,
    deltas,
    keys_of,
    new_core,
    new_turn,
    staged_blocks,
    take_pages,
)

BASE_NS, ROW_NS, TOKEN_NS = 10 * MS, MS // 20, MS // 10
TARGET_NS = 1000 * MS


def step_ns(num_tokens: int, num_decodes: int) -> int:
    return BASE_NS + num_tokens * TOKEN_NS + num_decodes * ROW_NS


class Bench:
    """A core whose steps take the time of a known law, which it has learnt already.

    Attributes:
        steps: (turn, start, end) of every row of every step.
        first_at_ns: first tokens.
    """

    def __init__(
        self,
        admission: AdmissionName = "deferred",
        *,
        slo_ttft_ns: int = TARGET_NS,
        budget: int = 100,
        num_blocks: int = 4000,
        turns_max: int = 64,
        is_taught: bool = True,
    ) -> None:
        self.core: EngineCore = new_core(
            num_blocks,
            admission=admission,
            slo_ttft_ns=slo_ttft_ns,
            prefill_tokens_max=budget,
            turns_running_max=turns_max,
            max_model_len=5000,
        )
        for rows in range(1, 21) if is_taught else ():
            self.core.costs.on_step(0, rows, step_ns(0, rows))
            self.core.costs.on_step(100, rows, step_ns(100, rows))
        self.now_ns = MS
        self.steps: list[list[tuple[str, int, int]]] = []
        self.first_at_ns: dict[str, int] = {}
        self._num_turns = 0

    def submit(
        self,
        name: str,
        num_tokens: int,
        *,
        slo_ns: int | None = None,
        priority: int = 0,
        num_output: int = 400,
        num_generated_before: int = 0,
        like: Turn | None = None,
    ) -> Turn:
        self._num_turns += 1
        token = 1000 + self._num_turns if like is None else like.tokens[0]
        sampling = SamplingParams(max_tokens=num_output, ignore_eos=True)
        turn = new_turn(
            name,
            [token] * num_tokens,
            priority=priority,
            sampling=sampling,
            num_generated_before=num_generated_before,
        )
        turn.request = replace(turn.request, arrived_at_ns=self.now_ns)
        turn.targets.slo_ttft_ns = slo_ns
        self.core.on_turn(turn, self.now_ns)
        return turn

    def step(self) -> list[str]:
        """Run a step; the turns in it."""
        plan, _ = self.core.plan_step(self.now_ns)
        assert plan is not None, "turns wait and nothing runs"
        rows = [(str(row.turn_id), row.start, row.end) for row in plan.rows()]
        self.steps.append(rows)
        lengths = [end - start for _, start, end in rows]
        num_tokens = sum(length for length in lengths if length > 1)
        duration_ns = step_ns(num_tokens, lengths.count(1))
        self.now_ns += duration_ns
        sampled = [Sampled(PLAIN_TOKEN) if sampling else None for sampling in plan.sampling]
        result = StepResult(sampled, duration_ns=duration_ns)
        for delta in deltas(self.core.on_step(result, self.now_ns)):
            self.first_at_ns.setdefault(delta.turn_id, self.now_ns)
        return [name for name, _, _ in rows]

    def step_until_in(self, name: str) -> int:
        """Run until `name` is in a step; when that step began."""
        while True:
            began_at_ns = self.now_ns
            if name in self.step():
                return began_at_ns

    def ttft_ns(self, turn: Turn) -> int:
        while turn.request.turn_id not in self.first_at_ns:
            self.step()
        return self.first_at_ns[turn.request.turn_id] - turn.request.arrived_at_ns


@pytest.fixture
def busy() -> Bench:
    """One turn decodes."""
    bench = Bench()
    bench.submit("old", 20)
    bench.step()
    return bench


class TestAtOnce:
    def test_eager(self) -> None:
        bench = Bench("eager")
        bench.submit("old", 20)
        bench.step()
        bench.submit("new", 20)
        assert bench.step() == ["old", "new"]

    def test_nobody_decodes(self) -> None:
        bench = Bench()
        bench.submit("a", 150)
        assert bench.step() == ["a"]
        bench.submit("b", 20)
        assert bench.step() == ["a", "b"]

    def test_no_target(self, busy: Bench) -> None:
        busy.submit("new", 20, slo_ns=0)
        assert busy.step() == ["old", "new"]

    def test_and_whoever_waits_comes_along(self, busy: Bench) -> None:
        busy.submit("patient", 20)
        assert busy.step() == ["old"]
        busy.submit("new", 20, slo_ns=0)
        assert busy.step() == ["old", "patient", "new"]

    def test_costs_are_not_known_yet(self) -> None:
        bench = Bench(is_taught=False)
        bench.submit("old", 20)
        bench.step()
        bench.submit("new", 20)
        assert bench.step() == ["old", "new"]

    def test_tokens_were_generated_before(self, busy: Bench) -> None:
        busy.submit("moved", 20, num_generated_before=5)
        assert busy.step() == ["old", "moved"]

    def test_it_was_preempted(self, busy: Bench) -> None:
        other = busy.submit("other", 20, slo_ns=0)
        busy.step()
        busy.core.planner.preempt(other, busy.now_ns)
        assert busy.step() == ["old", "other"]

    def test_its_target_cannot_be_met(self, busy: Bench) -> None:
        busy.submit("new", 20, slo_ns=15 * MS)
        assert busy.step() == ["old", "new"]

    def test_it_takes_the_last_place(self) -> None:
        bench = Bench(turns_max=3)
        bench.submit("old", 20)
        bench.step()
        bench.submit("a", 20)
        assert bench.step() == ["old"]
        bench.submit("b", 20)
        assert bench.step() == ["old", "a", "b"]

    def test_it_takes_the_last_pages(self) -> None:
        bench = Bench(num_blocks=40)
        bench.submit("old", 20)
        bench.step()
        bench.submit("a", 40)
        assert bench.step() == ["old"]
        bench.submit("b", 90)
        assert bench.step() == ["old", "a"]  # and not b, for which there are no pages

    def test_the_step_would_have_no_rows(self, busy: Bench) -> None:
        """A prompt that finds no pages takes those of the decode, whose blocks another turn holds,
        and then its own."""
        old = busy.core.running[0]
        busy.submit("long", 130, slo_ns=0, priority=1)
        assert busy.step() == ["old", "long"]
        busy.submit("new", 20, like=old)
        pool = busy.core.pool
        take_pages(pool, pool.num_available - 5 * NUM_LAYERS)
        assert busy.step() == ["long"]
        assert busy.core.planner.num_preemptions == 2


class TestDeferred:
    def test_until_it_and_one_more_just_make_the_deadline(self, busy: Bench) -> None:
        turn = busy.submit("new", 50)
        due_ns = turn.request.arrived_at_ns + int((1 - RESERVE_MIN) * TARGET_NS)
        began_at_ns = busy.step_until_in("new")
        frontrun_ns = due_ns - step_ns(100, 1) - step_ns(0, 1)
        assert frontrun_ns <= began_at_ns < frontrun_ns + step_ns(0, 1)
        assert busy.ttft_ns(turn) <= TARGET_NS

    def test_by_its_own_target(self, busy: Bench) -> None:
        turn = busy.submit("new", 50, slo_ns=200 * MS)
        assert 100 * MS < busy.ttft_ns(turn) <= 200 * MS

    def test_not_for_tokens_that_are_staged(self, busy: Bench) -> None:
        turn = self._staged(busy)
        due_ns = turn.request.arrived_at_ns + int((1 - RESERVE_MIN) * TARGET_NS)
        while turn.state is TurnState.WAITING:
            began_at_ns = busy.now_ns
            busy.step()
        assert began_at_ns >= due_ns - step_ns(40, 1) - 2 * step_ns(0, 1)

    def test_less_by_the_time_that_loading_takes(self, busy: Bench) -> None:
        turn = self._staged(busy)
        busy.core.estimates.load_bytes_per_s = 100 * NUM_LAYERS * busy.core.page_bytes / 0.3
        due_ns = turn.request.arrived_at_ns + int((1 - RESERVE_MIN) * TARGET_NS)
        while turn.state is TurnState.WAITING:
            began_at_ns = busy.now_ns
            busy.step()
        frontrun_ns = due_ns - 300 * MS - step_ns(40, 1) - step_ns(0, 1)
        assert frontrun_ns <= began_at_ns < frontrun_ns + step_ns(0, 1)

    def _staged(self, bench: Bench) -> Turn:
        """A turn of 420 tokens, of which the kvstore has 400."""
        turn = bench.submit("new", 420)
        turn.cache.prefix.staged = staged_blocks(1, keys_of(turn.tokens[:400]))
        bench.core.stager.hold(1)
        return turn

    def test_as_one_batch(self, busy: Bench) -> None:
        busy.submit("a", 30)
        busy.step()
        busy.submit("b", 30)
        busy.step_until_in("a")
        assert [name for name, _, _ in busy.steps[-1]] == ["old", "a", "b"]

    def test_for_less_long_the_larger_the_batch(self, busy: Bench) -> None:
        for name in "abcd":
            busy.submit(name, 400)
        began_at_ns = busy.step_until_in("a")
        work_ns = step_ns(2000, 0) + 19 * step_ns(0, 1)
        assert began_at_ns <= MS + step_ns(20, 0) + (1 - RESERVE_MIN) * TARGET_NS - work_ns + MS

    def test_in_order_of_priority(self, busy: Bench) -> None:
        busy.submit("low", 30)
        busy.submit("high", 30, priority=1)
        busy.step_until_in("high")
        assert [name for name, _, _ in busy.steps[-1]] == ["old", "high", "low"]

    def test_no_longer_than_somebody_decodes(self) -> None:
        bench = Bench()
        bench.submit("old", 20, num_output=4)
        bench.step()
        turn = bench.submit("new", 20)
        assert bench.ttft_ns(turn) < 100 * MS

    def test_less_after_turns_were_late(self, busy: Bench) -> None:
        for _ in range(5):
            busy.core.admission.punctuality.on_first_token(is_late=True)
        turn = busy.submit("new", 50)
        assert busy.ttft_ns(turn) < 500 * MS

    def test_a_batch_ends_together(self, busy: Bench) -> None:
        turns = [busy.submit(name, 150) for name in "abc"]
        firsts = {busy.ttft_ns(turn) for turn in turns}
        assert len(firsts) == 1
        assert firsts.pop() <= TARGET_NS
        busiest = max(sum(end - start for _, start, end in rows) for rows in busy.steps)
        assert busiest <= 101

    def test_a_batch_that_is_late_ends_one_by_one(self, busy: Bench) -> None:
        turns = [busy.submit(name, 150, slo_ns=20 * MS) for name in "abc"]
        assert len({busy.ttft_ns(turn) for turn in turns}) == 3


class TestPunctuality:
    def test_rests_where_few_are_late(self) -> None:
        punctuality = Punctuality(0.5)
        for number in range(10_000):
            punctuality.on_first_token(is_late=number % int(1 / LATE_SHARE) == 0)
        assert punctuality.reserve == pytest.approx(0.5, abs=0.11)

    def test_stays_within_its_bounds(self) -> None:
        punctuality = Punctuality()
        punctuality.on_first_token(is_late=False)
        assert punctuality.reserve == RESERVE_MIN
        for _ in range(50):
            punctuality.on_first_token(is_late=True)
        assert punctuality.reserve == 1.0

    def test_learns_from_first_tokens(self, busy: Bench) -> None:
        busy.now_ns += 2 * TARGET_NS
        turn = busy.submit("late", 20)
        arrived_at_ns = turn.request.arrived_at_ns - TARGET_NS
        turn.request = replace(turn.request, arrived_at_ns=arrived_at_ns)
        busy.ttft_ns(turn)
        assert busy.core.admission.punctuality.reserve > RESERVE_MIN

    def test_learns_nothing_from_what_was_never_possible(self, busy: Bench) -> None:
        busy.ttft_ns(busy.submit("long", 3000, slo_ns=50 * MS))
        assert busy.core.admission.punctuality.reserve == RESERVE_MIN


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 400),  # ms after the one before
        st.integers(1, 120),  # prompt tokens
        st.integers(1, 40),  # output tokens
        st.sampled_from([0, 0, 1]),  # priority
    ),
    min_size=1,
    max_size=12,
)


def replay(bench: Bench, arrivals: list[tuple[int, int, int, int]]) -> list[Turn]:
    """Let turns come and run to their ends; at every step, check who is kept waiting."""
    turns: list[Turn] = []
    coming = list(reversed(arrivals))
    next_at_ns = bench.now_ns + coming[-1][0] * MS
    while coming or bench.core.turns:
        if coming and (bench.now_ns >= next_at_ns or not bench.core.turns):
            bench.now_ns = max(bench.now_ns, next_at_ns)
            _, num_tokens, num_output, priority = coming.pop()
            name = f"t{len(turns)}"
            turns.append(bench.submit(name, num_tokens, num_output=num_output, priority=priority))
            next_at_ns = bench.now_ns + coming[-1][0] * MS if coming else 0
            continue
        began_at_ns = bench.now_ns
        waited = [turn for turn in bench.core.waiting if turn.state is TurnState.WAITING]
        names = bench.step()
        num_planned = sum(end - start for _, start, end in bench.steps[-1] if end - start > 1)
        for turn in waited:
            if (
                turn.request.turn_id not in names
                and num_planned < bench.core.limits.prefill_tokens_max
            ):
                alone_ns = step_ns(len(turn.tokens), 0)
                assert began_at_ns < turn.request.arrived_at_ns + TARGET_NS - alone_ns, (
                    "past its frontrun"
                )
    return turns


@settings(max_examples=60, deadline=None)
@given(ARRIVALS)
def test_nobody_waits_past_its_frontrun_and_all_end(
    arrivals: list[tuple[int, int, int, int]],
) -> None:
    bench = Bench()
    turns = replay(bench, arrivals)
    assert all(turn.num_generated == turn.request.sampling.max_tokens for turn in turns)
    pool = bench.core.pool
    assert pool.num_available == pool.num_pages == 4000 * NUM_LAYERS


@settings(max_examples=60, deadline=None)
@given(ARRIVALS)
def test_nobody_is_late_where_all_the_work_fits_into_the_reserve(
    arrivals: list[tuple[int, int, int, int]],
) -> None:
    num_tokens = 0
    few = []
    for arrival in arrivals:
        num_tokens += arrival[1]
        if num_tokens > 800:  # 80 ms, and eight steps of 10: less than a fifth of the target
            break
        few.append(arrival)
    bench = Bench()
    for turn in replay(bench, few):
        assert bench.first_at_ns[turn.request.turn_id] <= turn.request.arrived_at_ns + TARGET_NS


@settings(max_examples=40, deadline=None)
@given(ARRIVALS)
def test_the_same_turns_give_the_same_steps(arrivals: list[tuple[int, int, int, int]]) -> None:
    first, second = Bench(), Bench()
    replay(first, arrivals)
    replay(second, arrivals)
    assert first.steps == second.steps


@settings(max_examples=40, deadline=None)
@given(ARRIVALS)
def test_without_targets_deferred_is_eager(arrivals: list[tuple[int, int, int, int]]) -> None:
    eager, deferred = Bench("eager", slo_ttft_ns=0), Bench(slo_ttft_ns=0)
    replay(eager, arrivals)
    replay(deferred, arrivals)
    assert eager.steps == deferred.steps


@settings(max_examples=40, deadline=None)
@given(ARRIVALS)
def test_eager_leaves_nobody_waiting_while_there_is_room(
    arrivals: list[tuple[int, int, int, int]],
) -> None:
    bench = Bench("eager")
    for _, num_tokens, num_output, priority in arrivals:
        bench.submit(f"t{num_tokens}", num_tokens, num_output=num_output, priority=priority)
        bench.step()
        num_planned = sum(end - start for _, start, end in bench.steps[-1] if end - start > 1)
        assert not bench.core.waiting or num_planned >= bench.core.limits.prefill_tokens_max - 1
