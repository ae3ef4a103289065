"""The batch core: order, fences, pulls that stay out, and that every job has one end."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.oneshot.core import BatchCore
from services.worker.oneshot.effects import (
    BatchLimits,
    Effect,
    Pulled,
    PullInputs,
    Ran,
    RunBatch,
    SendDone,
    SendResults,
)
from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId
from shared.wire.messages import (
    SOLE_LEADERSHIP,
    BatchDone,
    BatchStart,
    JobRef,
    JobResult,
    OneshotCard,
    OneshotVariant,
)

MS = 1_000_000
MODEL = ModelId("m")
BATCH_NS = [(size + 5) * MS for size in range(1, 9)]
LIMITS = BatchLimits(batches_max=4, pull_wait_ns=10 * MS, remember_ns=1_000 * MS)


def make_core(limits: BatchLimits = LIMITS) -> BatchCore:
    card = OneshotCard(
        model_id=MODEL,
        task="embed",
        modality="text",
        source="s",
        fingerprint="f",
        slo_ms=50.0,
        variants=[OneshotVariant(variant=v, batch_ns=BATCH_NS) for v in (32, 64)],
        num_values=1,
    )
    return BatchCore(WorkerId("w"), [card], limits)


def batch(
    name: str, *jobs: str, fence: int = 1, start_in_ms: int = 0, variant: int = 32, model: str = "m"
) -> BatchStart:
    """A batch of jobs named ``frontend/number``."""
    return BatchStart(
        batch_id=BatchId(name),
        fence=fence,
        model_id=ModelId(model),
        fingerprint="f",
        variant=variant,
        jobs=[JobRef(job_id=JobId(j), frontend_id=FrontendId(j.split("/")[0])) for j in jobs],
        start_in_ns=start_in_ms * MS,
    )


def inputs(*jobs: str) -> list[Pulled]:
    return [Pulled(job_id=JobId(job), value=job) for job in jobs]


def of(kind: type, effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def done_of(effects: list[Effect]) -> BatchDone:
    [effect] = [effect for effect in effects if isinstance(effect, SendDone)]
    return effect.done


def results_of(effects: list[Effect]) -> list[JobResult]:
    return [r for effect in effects if isinstance(effect, SendResults) for r in effect.results]


def ran(values: list[str] | None, run_ns: int = MS, error: str = "") -> Ran:
    return Ran(started_at_ns=0, run_ns=run_ns, values=values, error=error)


def test_a_batch_from_start_to_end() -> None:
    core = make_core()
    effects = core.on_batch_start(batch("b", "f/1", "g/2", "f/3"), 0)
    pulls = [(e.frontend_id, e.job_ids) for e in effects if isinstance(e, PullInputs)]
    assert pulls == [("f", ("f/1", "f/3")), ("g", ("g/2",))]
    assert of(WakeAt, effects) == [WakeAt(10 * MS)]
    core.on_inputs(BatchId("b"), FrontendId("g"), inputs("g/2"), MS)
    effects = core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/1", "f/3"), 2 * MS)
    assert effects == [RunBatch(BatchId("b"), MODEL, 32, ("f/1", "g/2", "f/3"), 30_000 * MS)]
    answer = Ran(started_at_ns=3 * MS, run_ns=8 * MS, values=["a", "b", "c"])
    effects = core.on_ran(BatchId("b"), answer, 11 * MS)
    sent = {e.frontend_id: e.results for e in effects if isinstance(e, SendResults)}
    assert [(r.job_id, r.values) for r in sent[FrontendId("f")]] == [("f/1", "a"), ("f/3", "c")]
    assert [(r.job_id, r.values) for r in sent[FrontendId("g")]] == [("g/2", "b")]
    assert isinstance(effects[-1], SendDone)
    done = done_of(effects)
    assert (done.size, done.run_ns, done.wait_ns, done.is_refused) == (3, 8 * MS, 3 * MS, False)
    assert core.num_held == 0


def test_inputs_are_pulled_while_another_batch_runs() -> None:
    core = make_core()
    core.on_batch_start(batch("a", "f/1"), 0)
    core.on_inputs(BatchId("a"), FrontendId("f"), inputs("f/1"), 0)
    assert of(PullInputs, core.on_batch_start(batch("b", "f/2"), MS))
    assert core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/2"), 2 * MS) == []
    effects = core.on_ran(BatchId("a"), ran(["x"]), 3 * MS)
    assert [e.batch_id for e in effects if isinstance(e, RunBatch)] == ["b"]


def test_batches_run_in_the_order_in_which_they_came() -> None:
    core = make_core()
    core.on_batch_start(batch("a", "f/1"), 0)
    core.on_batch_start(batch("b", "g/1"), 0)
    assert core.on_inputs(BatchId("b"), FrontendId("g"), inputs("g/1"), 0) == [WakeAt(10 * MS)]
    effects = core.on_inputs(BatchId("a"), FrontendId("f"), inputs("f/1"), MS)
    assert [e.batch_id for e in effects if isinstance(e, RunBatch)] == ["a"]


def test_what_a_partial_answer_left_is_asked_for_again() -> None:
    core = make_core()
    core.on_batch_start(batch("b", "f/1", "f/2", "f/3"), 0)
    [again] = core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/1", "f/2"), MS)
    assert isinstance(again, PullInputs)
    assert again.job_ids == ("f/3",)
    assert of(RunBatch, core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/3"), MS))


def test_a_frontend_that_does_not_answer_loses_its_jobs_only() -> None:
    core = make_core()
    core.on_batch_start(batch("b", "f/1", "g/1", start_in_ms=20), 0)
    core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/1"), 0)
    assert core.on_wake(29 * MS) == [WakeAt(30 * MS)]
    [run] = core.on_wake(30 * MS)
    assert isinstance(run, RunBatch)
    assert run.values == ("f/1",)
    assert core.on_inputs(BatchId("b"), FrontendId("g"), inputs("g/1"), 31 * MS) == []
    effects = core.on_ran(BatchId("b"), ran(["x"]), 40 * MS)
    codes = {result.job_id: result.code for result in results_of(effects)}
    assert codes == {"f/1": "", "g/1": "input_missing"}
    assert done_of(effects).size == 1


@pytest.mark.parametrize("answer", [None, [], inputs("x/9")])
def test_an_answer_that_brings_nothing_ends_the_wait(answer: list[Pulled] | None) -> None:
    core = make_core()
    core.on_batch_start(batch("b", "f/1", start_in_ms=1000), 0)
    effects = core.on_inputs(BatchId("b"), FrontendId("f"), answer, MS)
    assert [result.code for result in results_of(effects)] == ["input_missing"]
    assert (done_of(effects).size, done_of(effects).run_ns) == (0, 0)


def test_an_insane_start_does_not_hold_the_device() -> None:
    core = make_core()
    effects = core.on_batch_start(batch("b", "f/1", start_in_ms=10**9), 0)
    assert of(WakeAt, effects) == [WakeAt(LIMITS.start_in_max_ns + LIMITS.pull_wait_ns)]


def test_who_hung_up_and_who_sent_nonsense_is_left_out() -> None:
    core = make_core()
    core.on_batch_start(batch("b", "f/1", "f/2", "f/3"), 0)
    pulled = [
        Pulled(job_id=JobId("f/1"), is_gone=True),
        Pulled(job_id=JobId("f/2"), error="no tokens"),
        *inputs("f/3"),
    ]
    [run] = core.on_inputs(BatchId("b"), FrontendId("f"), pulled, 0)
    assert isinstance(run, RunBatch)
    assert run.values == ("f/3",)
    effects = core.on_ran(BatchId("b"), ran(["x"]), MS)
    results = [(r.job_id, r.code, r.message) for r in results_of(effects)]
    assert results == [("f/2", "invalid_input", "no tokens"), ("f/3", "", "")]


def test_a_model_that_fails_fails_its_jobs_and_the_next_batch_runs() -> None:
    core = make_core()
    for name in ("a", "b"):
        core.on_batch_start(batch(name, f"f/{name}"), 0)
        core.on_inputs(BatchId(name), FrontendId("f"), inputs(f"f/{name}"), 0)
    effects = core.on_ran(BatchId("a"), ran(None, error="ValueError: odd"), MS)
    [result] = results_of(effects)
    assert (result.code, result.message) == ("model_error", "ValueError: odd")
    assert done_of(effects).size == 0
    assert [e.batch_id for e in effects if isinstance(e, RunBatch)] == ["b"]


@pytest.mark.parametrize(
    "start",
    [
        batch("b", "f/1", model="other"),
        batch("b", "f/1", variant=16),
        replace(batch("b", "f/1"), fingerprint="other"),
        batch("b"),
        batch("b", *(f"f/{n}" for n in range(9))),
    ],
)
def test_what_cannot_run_is_refused(start: BatchStart) -> None:
    core = make_core()
    done = done_of(core.on_batch_start(start, 0))
    assert done.is_refused
    assert (done.model_id, done.variant, done.size) == (start.model_id, start.variant, 0)


def test_too_many_batches_are_refused_for_good() -> None:
    core = make_core()
    for n in range(4):
        assert of(PullInputs, core.on_batch_start(batch(str(n), f"f/{n}"), 0))
    late = batch("late", "f/9")
    assert done_of(core.on_batch_start(late, 0)).is_refused
    core.on_inputs(BatchId("0"), FrontendId("f"), inputs("f/0"), 0)
    core.on_ran(BatchId("0"), ran(["x"]), 0)
    assert done_of(core.on_batch_start(late, 0)).is_refused  # its jobs are placed elsewhere now


def test_a_draining_worker_refuses_and_finishes() -> None:
    core = make_core()
    core.on_batch_start(batch("a", "f/1"), 0)
    core.drain()
    assert done_of(core.on_batch_start(batch("b", "f/2"), 0)).is_refused
    assert of(RunBatch, core.on_inputs(BatchId("a"), FrontendId("f"), inputs("f/1"), 0))


class TestFence:
    def test_an_older_leaders_batch_is_refused(self) -> None:
        core = make_core()
        core.on_fence(SOLE_LEADERSHIP, 5)
        done = done_of(core.on_batch_start(batch("old", "f/1", fence=4), 0))
        assert (done.is_refused, done.fence) == (True, 5)  # so it learns that it was deposed
        assert of(PullInputs, core.on_batch_start(batch("new", "f/1", fence=7), 0))
        assert core.fence(SOLE_LEADERSHIP) == 7
        core.on_fence(SOLE_LEADERSHIP, 6)
        assert core.fence(SOLE_LEADERSHIP) == 7

    def test_a_refused_batch_raises_it_too(self) -> None:
        core = make_core()
        assert done_of(core.on_batch_start(batch("b", fence=9), 0)).is_refused
        assert core.fence(SOLE_LEADERSHIP) == 9

    def test_what_was_accepted_before_still_runs_and_is_reported(self) -> None:
        core = make_core()
        core.on_batch_start(batch("a", "f/1", fence=1), 0)
        core.on_fence(SOLE_LEADERSHIP, 2)
        [ref] = core.refs(0)
        assert (ref.batch_id, ref.fence) == ("a", 1)
        assert of(RunBatch, core.on_inputs(BatchId("a"), FrontendId("f"), inputs("f/1"), 0))


class TestTwins:
    def test_of_a_held_batch_change_nothing(self) -> None:
        core = make_core()
        core.on_batch_start(batch("b", "f/1"), 0)
        assert core.on_batch_start(batch("b", "f/1"), 0) == []
        core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/1"), 0)
        assert core.on_batch_start(batch("b", "f/1"), 0) == []

    def test_of_an_ended_batch_have_its_end_told_again(self) -> None:
        core = make_core()
        core.on_batch_start(batch("b", "f/1"), 0)
        core.on_inputs(BatchId("b"), FrontendId("f"), inputs("f/1"), 0)
        done = done_of(core.on_ran(BatchId("b"), ran(["x"]), 0))
        assert core.on_batch_start(batch("b", "f/1"), LIMITS.remember_ns) == [SendDone(done)]
        assert of(PullInputs, core.on_batch_start(batch("b", "f/1"), LIMITS.remember_ns + 1))

    def test_memory_is_bounded(self) -> None:
        core = make_core(BatchLimits(remembered_max=2))
        for name in ("a", "b", "c"):
            core.on_batch_start(batch(name), 0)
        assert core.on_batch_start(batch("c", "f/1"), 0)[0] == SendDone(
            done_of(core.on_batch_start(batch("c"), 0))
        )
        assert of(PullInputs, core.on_batch_start(batch("a", "f/1"), 0))


def test_a_report_says_until_when_the_device_is_taken() -> None:
    core = make_core()
    core.on_batch_start(batch("a", "f/1", "f/2"), 0)
    core.on_inputs(BatchId("a"), FrontendId("f"), inputs("f/1", "f/2"), 0)
    core.on_batch_start(batch("b", "g/1"), 0)
    first, second = core.refs(3 * MS)
    assert (first.batch_id, first.remaining_ns) == ("a", 4 * MS)
    assert (second.batch_id, second.remaining_ns) == ("b", 10 * MS)
    assert [(ref.job_id, ref.frontend_id) for ref in first.jobs] == [("f/1", "f"), ("f/2", "f")]


def test_results_too_large_for_one_message_go_in_several() -> None:
    core = make_core(BatchLimits(results_bytes_max=10))
    jobs = [f"f/{n}" for n in range(5)]
    core.on_batch_start(batch("b", *jobs), 0)
    core.on_inputs(BatchId("b"), FrontendId("f"), inputs(*jobs), 0)
    effects = core.on_ran(BatchId("b"), ran(["1234", "5678", "9", "x" * 20, "y"]), 0)
    sizes = [len(e.results) for e in effects if isinstance(e, SendResults)]
    assert sizes == [3, 1, 1]


@dataclass
class World:
    """Frontends, a device and a scheduler around the core, in an order that hypothesis draws."""

    core: BatchCore
    now_ns: int = 0
    sent: dict[str, BatchStart] = field(default_factory=dict)
    pulls: list[PullInputs] = field(default_factory=list)
    running: RunBatch | None = None
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    gone: set[tuple[str, str]] = field(default_factory=set)
    done: dict[str, BatchDone] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    alarm_ns: int | None = None

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case PullInputs():
                    assert effect.timeout_ns > 0
                    self.pulls.append(effect)
                case RunBatch():
                    assert self.running is None, "two batches overlap"
                    assert effect.batch_id not in self.started, "a batch runs twice"
                    assert effect.values
                    self.running = effect
                    self.started.append(effect.batch_id)
                case SendResults():
                    for result in effect.results:
                        assert result.job_id.startswith(effect.frontend_id)
                        self.results[effect.batch_id, result.job_id] += 1
                case SendDone():
                    known = self.done.setdefault(effect.done.batch_id, effect.done)
                    assert known == effect.done, "two different ends"
                case WakeAt():
                    self.alarm_ns = effect.at_ns

    def start(self, name: str, num_jobs: int, num_frontends: int, fence: int) -> None:
        jobs = [f"{'fgh'[n % num_frontends]}/{name}/{n}" for n in range(num_jobs)]
        start = self.sent.setdefault(name, batch(name, *jobs, fence=fence))
        self.perform(self.core.on_batch_start(start, self.now_ns))

    def answer(self, which: int, num: int, num_gone: int) -> None:
        if not self.pulls:
            return
        pull = self.pulls.pop(which % len(self.pulls))
        given = pull.job_ids[: max(num, 0)]
        if pull.batch_id not in self.started and pull.batch_id not in self.done:
            self.gone.update((pull.batch_id, job_id) for job_id in given[:num_gone])
        brought = [
            Pulled(job_id=job_id, value=job_id, is_gone=n < num_gone)
            for n, job_id in enumerate(given)
        ]
        answer = brought if num >= 0 else None
        self.perform(self.core.on_inputs(pull.batch_id, pull.frontend_id, answer, self.now_ns))

    def finish(self, is_good: bool) -> None:
        if self.running is None:
            return
        run, self.running = self.running, None
        values = [str(value) for value in run.values] if is_good else None
        answer = Ran(started_at_ns=self.now_ns, run_ns=MS, values=values)
        self.perform(self.core.on_ran(run.batch_id, answer, self.now_ns))

    def pass_time(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        if self.alarm_ns is not None and self.alarm_ns <= self.now_ns:
            self.alarm_ns = None
            self.perform(self.core.on_wake(self.now_ns))


NAMES = st.sampled_from([f"b{n}" for n in range(8)])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), NAMES, st.integers(1, 8), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("answer"), st.integers(0, 9), st.integers(-1, 8), st.integers(0, 2)),
        st.tuples(st.just("finish"), st.booleans()),
        st.tuples(st.just("pass_time"), st.integers(0, 20 * MS)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(events=EVENTS)
def test_every_job_has_one_end_and_batches_never_overlap(
    events: list[tuple[str, *tuple[object, ...]]],
) -> None:
    world = World(make_core())
    for kind, *arguments in events:
        method: Callable[..., None] = getattr(world, kind)
        method(*arguments)
    while world.core.num_held:  # nothing more comes: alarms and the device end what is held
        world.finish(is_good=True)
        world.pass_time(LIMITS.start_in_max_ns)
    for name, start in world.sent.items():
        done = world.done[name]
        for ref in start.jobs:
            key = (name, ref.job_id)
            num_ends = world.results[key] + done.is_refused + (key in world.gone)
            is_gone_from_refused = done.is_refused and key in world.gone
            assert num_ends == 1 or is_gone_from_refused
    assert world.core.refs(world.now_ns) == []
