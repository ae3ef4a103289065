"""The life of jobs: whatever arrives in whatever order, each request is answered exactly once."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.frontend.core.limits.capacity import Capacity
from services.frontend.core.turns.job_events import (
    AnswerPull,
    Cancel,
    Done,
    Effect,
    Fail,
    JobLimits,
    NewJob,
    NewRequest,
    Submit,
)
from services.frontend.core.turns.jobs import JOBS_PER_MESSAGE_MAX, Jobs
from shared.effects import WakeAt
from shared.ids import FrontendId, JobId, ModelId
from shared.wire import messages as m
from tests.tables import largest_table

MS = 1_000_000
LIMITS = JobLimits(gather_ns=MS, silent_min_ns=50 * MS, grace_ns=250 * MS, reply_bytes_max=2000)


def request(
    name: str = "r",
    num: int = 2,
    slo_ms: int = 1000,
    now_ns: int = 0,
    shard: int = 0,
    size: int = 0,
) -> NewRequest:
    return NewRequest(
        request_id=name,
        model_id=ModelId("m"),
        fingerprint="f",
        shard=shard,
        jobs=[
            NewJob(variant=8, input=m.JobInput(job_id=JobId(f"{name}-{at}"), tokens="x" * size))
            for at in range(num)
        ],
        arrived_at_ns=now_ns,
        deadline_at_ns=now_ns + slo_ms * MS,
        fastest_ns=MS,
    )


def results(*job_ids: str, values: str = "v", code: str = "") -> m.JobResults:
    made = [m.JobResult(job_id=JobId(name), values=values + name, code=code) for name in job_ids]
    return m.JobResults(results=made)


def dropped(*job_ids: str) -> m.JobsDropped:
    jobs = [
        m.JobDropped(job_id=JobId(name), code="no_time", message="", retry_after_s=3)
        for name in job_ids
    ]
    return m.JobsDropped(jobs=jobs)


def pull(jobs: Jobs, *job_ids: str, now_ns: int = 0) -> list[m.JobInput]:
    asked = m.InputPull(job_ids=[JobId(name) for name in job_ids])
    (effect,) = jobs.on_pull(asked, now_ns)
    assert isinstance(effect, AnswerPull)
    return effect.message.inputs


@dataclass
class Driver:
    """A core with the alarm that its shell keeps, which rings `lag_ns` late."""

    jobs: Jobs = field(default_factory=lambda: Jobs(FrontendId("fe"), LIMITS))
    now_ns: int = 0
    wake_at_ns: int | None = None
    lag_ns: int = 0
    seen: list[Effect] = field(default_factory=list)

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, WakeAt):
                self.wake_at_ns = effect.at_ns
        rest: list[Effect] = [effect for effect in effects if not isinstance(effect, WakeAt)]
        self.seen += rest
        return rest

    def until(self, at_ns: int) -> list[Effect]:
        """Let time pass."""
        effects: list[Effect] = []
        while self.wake_at_ns is not None and self.wake_at_ns + self.lag_ns <= at_ns:
            self.now_ns, self.wake_at_ns = max(self.now_ns, self.wake_at_ns + self.lag_ns), None
            effects += self.take(self.jobs.on_wake(self.now_ns))
        self.now_ns = max(self.now_ns, at_ns)
        return effects

    def new(self, new: NewRequest) -> list[Effect]:
        return self.take(self.jobs.on_new(new, self.now_ns))


def submitted(effects: list[Effect]) -> list[tuple[int, list[tuple[str, int]]]]:
    """Shard, and id and time left of each job, of each message."""
    return [
        (e.shard, [(job.job_id, job.slo_ns) for job in e.message.jobs])
        for e in effects
        if isinstance(e, Submit)
    ]


def test_what_comes_together_is_submitted_together_a_shard_at_a_time() -> None:
    it = Driver()
    it.new(request("a", slo_ms=100))
    it.now_ns = MS // 2
    it.new(request("b", 1, slo_ms=100, now_ns=MS // 2))
    it.new(request("c", 1, slo_ms=100, now_ns=MS // 2, shard=3))
    left_a, left_b = 99 * MS, 99 * MS + MS // 2
    assert submitted(it.until(MS)) == [
        (0, [("a-0", left_a), ("a-1", left_a), ("b-0", left_b)]),
        (3, [("c-0", left_b)]),
    ]


def test_very_many_are_divided_among_messages() -> None:
    it = Driver()
    it.new(request("a", JOBS_PER_MESSAGE_MAX + 1))
    assert [len(jobs) for _, jobs in submitted(it.until(MS))] == [JOBS_PER_MESSAGE_MAX, 1]


def test_the_first_result_wins_and_values_keep_the_order_of_inputs() -> None:
    it = Driver()
    it.new(request())
    it.until(MS)
    assert it.jobs.on_results(results("r-1"), 2 * MS) == []
    assert pull(it.jobs, "r-1")[0].gone and not pull(it.jobs, "r-0")[0].gone
    done = it.jobs.on_results(results("r-1", "r-0", "r-0", "other", values="w"), 3 * MS)
    assert done == [Done(request_id="r", values=["wr-0", "vr-1"], took_ns=3 * MS, is_late=False)]
    assert len(it.jobs) == 0


def test_one_dropped_job_ends_its_request_at_once_and_cancels_the_others() -> None:
    it = Driver()
    it.new(request(num=4))
    it.until(MS)
    it.jobs.on_results(results("r-0"), 2 * MS)
    fail, cancel = it.jobs.on_dropped(dropped("r-1", "r-3"))
    assert isinstance(fail, Fail) and fail.outcome == "dropped" and fail.num_jobs == 4
    assert fail.why.code == "no_time" and fail.why.retry_after_s == 3
    assert isinstance(cancel, Cancel) and cancel.message.job_ids == ["r-2"]
    assert it.jobs.on_results(results("r-2"), 2 * MS) == [] and len(it.jobs) == 0


def test_a_failed_job_ends_its_request() -> None:
    it = Driver()
    it.new(request())
    it.until(MS)
    fail, cancel = it.jobs.on_results(results("r-0", code="broke"), 2 * MS)
    assert isinstance(fail, Fail) and fail.outcome == "failed" and fail.why.http_status == 500
    assert isinstance(cancel, Cancel) and cancel.message.job_ids == ["r-1"]


def test_what_the_client_sent_is_the_clients_fault() -> None:
    it = Driver()
    it.new(request())
    it.until(MS)
    fail, _ = it.jobs.on_results(results("r-0", code="invalid_input"), 2 * MS)
    assert isinstance(fail, Fail) and fail.why.http_status == 400


def test_an_input_that_missed_its_batch_goes_into_another() -> None:
    it = Driver()
    it.new(request())
    it.until(10 * MS)
    missed = results("r-0", "r-1", values="", code="input_missing")
    assert it.take(it.jobs.on_results(missed, 10 * MS)) == []
    again_ns = (10 + 250) * MS
    assert submitted(it.until(again_ns - 1)) == []
    [(_, jobs)] = submitted(it.until(again_ns))
    assert jobs == [("r-0", 1000 * MS - again_ns), ("r-1", 1000 * MS - again_ns)]
    it.jobs.on_results(results("r-0"), 300 * MS)
    [done] = it.jobs.on_results(results("r-1"), 300 * MS)
    assert isinstance(done, Done)


def test_an_input_that_missed_its_batch_too_late_for_another_is_told_at_once() -> None:
    it = Driver()
    it.new(request(slo_ms=200))
    it.until(10 * MS)
    fail, cancel = it.jobs.on_results(results("r-0", code="input_missing"), 10 * MS)
    assert isinstance(fail, Fail) and fail.why.code == "deadline_exceeded"
    assert fail.why.http_status == 503 and isinstance(cancel, Cancel)


def test_silence_submits_again_after_half_of_what_is_left() -> None:
    it = Driver()
    it.new(request(num=1))
    assert submitted(it.until(499 * MS)) == [(0, [("r-0", 999 * MS)])]
    # (1000 - 1) / 2 after the first submit, at 1 ms
    assert submitted(it.until(501 * MS)) == [(0, [("r-0", 499 * MS + MS // 2)])]
    pull(it.jobs, "r-0", now_ns=600 * MS)
    assert it.until(799 * MS) == []  # heard of at 600 ms
    assert len(submitted(it.until(801 * MS))) == 1
    assert len(submitted(it.until(1000 * MS))) == 2  # at 900 and 950 ms
    assert it.until(1249 * MS) == []
    fail, cancel = it.until(1250 * MS)
    assert isinstance(fail, Fail) and fail.why.code == "deadline_exceeded"
    assert fail.why.http_status == 503 and isinstance(cancel, Cancel)


def test_an_alarm_that_rings_late_does_not_shorten_the_grace() -> None:
    it = Driver()
    it.new(request(num=1))
    it.until(MS)
    assert it.take(it.jobs.on_wake(1100 * MS)) == []
    assert len(it.until(1250 * MS)) == 2


def test_a_short_target_is_submitted_once() -> None:
    it = Driver()
    it.new(request(slo_ms=40))
    assert len(submitted(it.until(289 * MS))) == 1


def test_a_new_leader_hears_of_open_jobs_at_once() -> None:
    it = Driver()
    it.new(request("a"))
    it.until(MS)
    it.new(request("b", 1, now_ns=MS))
    it.jobs.on_results(results("a-0"), MS)
    effects = it.take(it.jobs.on_resubmit_all(2 * MS))
    assert submitted(effects) == [(0, [("b-0", 999 * MS), ("a-1", 998 * MS)])]
    assert it.until(3 * MS) == []


def test_after_the_deadline_results_count_as_late_but_inputs_are_gone() -> None:
    it = Driver()
    it.new(request(num=1, slo_ms=100))
    it.until(101 * MS)
    assert pull(it.jobs, "r-0", now_ns=101 * MS)[0].gone
    assert it.take(it.jobs.on_resubmit_all(101 * MS)) == []
    (done,) = it.jobs.on_results(results("r-0"), 101 * MS)
    assert isinstance(done, Done) and done.is_late


def test_inputs_that_took_too_long_to_make_fail_at_once_and_silently() -> None:
    it = Driver(now_ns=100 * MS)
    (fail,) = it.new(request(slo_ms=100))
    assert isinstance(fail, Fail) and fail.why.code == "deadline_exceeded"
    assert len(it.jobs) == 0


def test_what_was_not_submitted_need_not_be_cancelled() -> None:
    it = Driver()
    it.new(request("a"))
    assert it.jobs.on_cancel("a") == [] and it.jobs.on_cancel("a") == []
    assert submitted(it.until(MS)) == []
    it.new(request("b", now_ns=MS))
    it.until(2 * MS)
    (cancel,) = it.jobs.on_cancel("b")
    assert isinstance(cancel, Cancel) and cancel.message.job_ids == ["b-0", "b-1"]
    assert pull(it.jobs, "b-0")[0].gone


def test_a_pull_answers_what_fits_and_at_least_one() -> None:
    it = Driver()
    it.new(request("a", 4, size=600))
    it.new(request("b", 1, size=5000))
    names = [f"a-{at}" for at in range(4)]
    assert [i.job_id for i in pull(it.jobs, *names)] == ["a-0", "a-1"]
    assert [i.job_id for i in pull(it.jobs, "b-0", "a-0")] == ["b-0"]
    assert [i.job_id for i in pull(it.jobs, "a-0", "b-0", "a-1")] == ["a-0"]
    assert pull(it.jobs) == []


def test_a_stop_ends_every_request() -> None:
    it = Driver()
    it.new(request())
    it.until(MS)
    fail, cancel = it.jobs.on_stop()
    assert isinstance(fail, Fail) and fail.why.code == "stopping"
    assert isinstance(cancel, Cancel) and it.jobs.on_stop() == []


def test_timers_of_ended_requests_do_not_pile_up() -> None:
    it = Driver()
    for at in range(5000):
        it.new(request(f"r{at}", 1))
        it.jobs.on_cancel(f"r{at}")
    assert largest_table(it.jobs) < 1100


def test_room_is_taken_and_given_back() -> None:
    capacity = Capacity(num_max=3, bytes_max=100)
    assert capacity.take(2, 60) and not capacity.take(2, 0) and not capacity.take(1, 41)
    assert capacity.take(1, 40)
    capacity.give(3, 100)
    with pytest.raises(AssertionError):
        capacity.give(0, 1)


names = st.integers(0, 3)
some_jobs = st.lists(st.tuples(names, st.integers(0, 2)), max_size=5)
events = st.one_of(
    st.tuples(st.just("new"), names, st.integers(20, 400)),
    st.tuples(st.just("results"), some_jobs, st.booleans()),
    st.tuples(st.just("dropped"), some_jobs, st.none()),
    st.tuples(st.just("pull"), some_jobs, st.none()),
    st.tuples(st.just("leader"), st.none(), st.none()),
    st.tuples(st.just("cancel"), names, st.none()),
    st.tuples(st.just("time"), st.integers(0, 300), st.sampled_from([0, 0, 5, 120, 600])),
)


@given(st.lists(events, max_size=50))
@settings(max_examples=200, deadline=None)
@example([("new", 0, 20), ("time", 20, 120), ("leader", None, None)])  # the alarm rings late
def test_any_order_answers_every_request_once(script: list[tuple[str, object, object]]) -> None:
    """Results, repeated and unknown ones too, drops, pulls, leader changes, hang-ups, silence."""
    it = Driver()
    opened: dict[str, NewRequest] = {}
    cancelled: set[str] = set()
    first: dict[str, str] = {}  # what the first result of each job said
    latest: dict[int, str] = {}  # number to name of its newest request

    def ended() -> set[str]:
        return cancelled | {e.request_id for e in it.seen if isinstance(e, Done | Fail)}

    def job_ids(pairs: object) -> list[str]:
        assert isinstance(pairs, list)
        return [f"{latest.get(number, 'none')}-{at}" for number, at in pairs]

    for step, (kind, what, extra) in enumerate(script):
        if kind == "new" and isinstance(what, int) and isinstance(extra, int):
            name = f"{what}.{step}"
            if latest.get(what) in ended() | {None}:
                latest[what] = name
                opened[name] = request(name, 1 + what % 3, extra, it.now_ns, shard=what % 2)
                it.new(opened[name])
        elif kind == "results":
            made = results(*job_ids(what), values=f"{step}:", code="bad" if extra else "")
            for result in made.results:
                name = result.job_id.rpartition("-")[0]
                if not extra and name not in ended():
                    first.setdefault(result.job_id, result.values)
            it.take(it.jobs.on_results(made, it.now_ns))
        elif kind == "dropped":
            it.take(it.jobs.on_dropped(dropped(*job_ids(what))))
        elif kind == "pull":
            for given_input in pull(it.jobs, *job_ids(what), now_ns=it.now_ns):
                name = given_input.job_id.rpartition("-")[0]
                wanted = name in opened and name not in ended() and given_input.job_id not in first
                wanted = wanted and int(given_input.job_id[-1]) < len(opened[name].jobs)
                is_in_time = wanted and it.now_ns < opened[name].deadline_at_ns
                assert given_input.gone is not is_in_time
        elif kind == "leader":
            effects = it.take(it.jobs.on_resubmit_all(it.now_ns))
            asked = {job_id for _, jobs in submitted(effects) for job_id, _ in jobs}
            due = {
                job.input.job_id
                for name, new in opened.items()
                if name not in ended() and new.deadline_at_ns > it.now_ns
                for job in new.jobs
            }
            assert asked == due - first.keys()
        elif kind == "cancel" and isinstance(what, int) and what in latest:
            if latest[what] not in ended():
                cancelled.add(latest[what])
            it.take(it.jobs.on_cancel(latest[what]))
        elif isinstance(what, int) and isinstance(extra, int):
            it.lag_ns = extra * MS
            it.until(it.now_ns + what * MS)
    it.until(it.now_ns + 10_000 * MS)

    answers = [e.request_id for e in it.seen if isinstance(e, Done | Fail)]
    assert sorted(answers + list(cancelled)) == sorted(opened)
    assert len(it.jobs) == 0 and it.wake_at_ns is None
    for effect in it.seen:
        if isinstance(effect, Done):
            new = opened[effect.request_id]
            assert effect.values == [first[job.input.job_id] for job in new.jobs]
            assert effect.is_late == (new.arrived_at_ns + effect.took_ns > new.deadline_at_ns)
        elif isinstance(effect, Submit):
            assert all(0 <= job.slo_ns <= 400 * MS for job in effect.message.jobs)
