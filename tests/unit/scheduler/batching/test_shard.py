"""Queues, windows and the rank table together: what a central batcher does with its jobs."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.scheduler.core.batching.batcher import WindowBatcher
from services.scheduler.core.batching.effects import Drop
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec
from services.scheduler.policies import make_batcher
from tests.tables import largest_table
from tests.unit.scheduler.batching.driver import Player, linear

MS = 1_000_000
POLICIES = ["deferred", "deferred-prefix", "steady", "eager", "timeout:0.000003"]
DEFERRED = ["deferred", "deferred-prefix"]
END_NS = 1_000 * MS
SPECS = (linear("a", 1, 5, slo_ns=12, size_max=7), linear("b", 2, 3, slo_ns=20, size_max=4))


@dataclass(frozen=True)
class Happening:
    """One line of a random history."""

    kind: str
    after_ns: int
    index: int  # of a model, a GPU, or a job
    value: int  # time to a deadline, or a percentage


HAPPENINGS = st.builds(
    Happening,
    kind=st.sampled_from(["job"] * 12 + ["cancel", "add_gpu", "remove_gpu", "retune"]),
    after_ns=st.integers(0, 6),
    index=st.integers(0, 30),
    value=st.integers(1, 30),
)


LEFT_OUT_AT_THE_GRANT = [
    Happening("job", 0, 1, 9),
    Happening("job", 0, 1, 9),
    Happening("job", 0, 1, 19),
    Happening("job", 1, 0, 1),
    Happening("job", 5, 1, 13),
    Happening("job", 1, 1, 10),
]


def happen(player: Player, happening: Happening, *, mixed_targets: bool) -> None:
    spec = SPECS[happening.index % len(SPECS)]
    gpu = happening.index % 3
    match happening.kind:
        case "job":
            player.submit(spec.key, happening.value if mixed_targets else spec.slo_ns)
        case "cancel":
            waiting = waiting_jobs(player)
            if waiting:
                player.cancel(waiting[happening.index % len(waiting)])
        case "add_gpu":
            player.add_gpu(gpu, ["a", "b"] if happening.value % 2 else [spec.key])
        case "remove_gpu":
            if gpu in player.held:
                player.remove_gpu(gpu)
        case "retune":
            size_max = spec.size_max - happening.value % 3
            scaled = [batch_ns * (90 + happening.value) // 100 for batch_ns in spec.batch_ns]
            player.add_model(ModelSpec(spec.key, scaled[: size_max + 1], spec.slo_ns))


def waiting_jobs(player: Player) -> list[Job]:
    ended = set(map(id, player.ended))
    return [job for job in player.jobs if id(job) not in ended]


def play(player: Player, history: list[Happening], *, mixed_targets: bool = True) -> None:
    for happening in history:
        player.advance(player.now_ns + happening.after_ns)
        happen(player, happening, mixed_targets=mixed_targets)
    player.advance(END_NS)


def check_ends(player: Player) -> None:
    """Every job met one end; every batch was of one model, and in time for all of its jobs by the
    batcher's own reckoning.
    """
    times = Counter(map(id, player.ended))
    assert all(times[id(job)] == 1 for job in player.jobs), "a job was lost or met two ends"
    for sent in player.sent:
        batch = sent.batch
        assert batch.jobs
        assert {job.model for job in batch.jobs} == {batch.model}
        assert batch.start_at_ns >= sent.at_ns + player.delays.of(len(batch.jobs))
        assert batch.end_at_ns <= min(job.deadline_ns for job in batch.jobs)


def new_player(policy: str, delays: Delays, num_gpus: int) -> Player:
    player = Player(make_batcher(policy, delays), delays)
    for spec in SPECS:
        player.add_model(spec)
    for gpu in range(num_gpus):
        player.add_gpu(gpu, ["a", "b"])
    return player


DELAYS = st.builds(Delays, st.integers(0, 2), st.integers(0, 1))


@pytest.mark.parametrize("policy", POLICIES)
@given(history=st.lists(HAPPENINGS, max_size=60), delays=DELAYS, slow_percent=st.integers(80, 130))
@settings(max_examples=60, deadline=None)
def test_every_job_meets_one_end_whatever_happens(
    policy: str, history: list[Happening], delays: Delays, slow_percent: int
) -> None:
    player = new_player(policy, delays, num_gpus=2)
    player.run_ns = lambda batch: (batch.end_at_ns - batch.start_at_ns) * slow_percent // 100
    play(player, history)
    if not player.held:  # jobs wait for a GPU only as long as they could be done in time
        player.add_gpu(0, ["a", "b"])
    check_ends(player)
    assert player.batcher.wake_at_ns > END_NS


@pytest.mark.parametrize("policy", POLICIES)
@given(history=st.lists(HAPPENINGS, max_size=40), delays=DELAYS)
@settings(max_examples=40, deadline=None)
def test_who_looks_at_windows_changes_nothing_and_sees_all_that_wait(
    policy: str, history: list[Happening], delays: Delays
) -> None:
    watched, unwatched = (new_player(policy, delays, num_gpus=2) for _ in range(2))
    for happening in history:
        for player in (watched, unwatched):
            player.advance(player.now_ns + happening.after_ns)
            happen(player, happening, mixed_targets=True)
        assert isinstance(watched.batcher, WindowBatcher)
        views = {view.key: view for view in watched.batcher.windows()}
        waiting = Counter(job.model for job in waiting_jobs(watched))
        assert {key: view.num_jobs for key, view in views.items()} == waiting
        for key, view in views.items():
            due_ns = min(job.deadline_ns for job in waiting_jobs(watched) if job.model == key)
            assert view.closes_at_ns < due_ns
    for player in (watched, unwatched):
        player.advance(END_NS)
    assert [sent.at_ns for sent in watched.sent] == [sent.at_ns for sent in unwatched.sent]
    assert len(watched.dropped) == len(unwatched.dropped)


def only_jobs(history: list[Happening]) -> list[Happening]:
    return [happening for happening in history if happening.kind == "job"]


@pytest.mark.parametrize("policy", POLICIES)
@given(history=st.lists(HAPPENINGS, max_size=60), delays=DELAYS, mixed_targets=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_job_that_cannot_make_it_is_told_so_at_once(
    policy: str, history: list[Happening], delays: Delays, mixed_targets: bool
) -> None:
    """By the first instant at which it would be late even alone: 1 ns after its last chance."""
    player = new_player(policy, delays, num_gpus=1)
    play(player, only_jobs(history), mixed_targets=mixed_targets)
    check_ends(player)
    for dropped in player.dropped:
        job = dropped.job
        spec = next(spec for spec in SPECS if spec.key == job.model)
        last_ns = job.deadline_ns - spec.batch_ns[1] - delays.of(1)
        assert dropped.at_ns <= max(last_ns + 1, job.arrived_at_ns)


@pytest.mark.parametrize("policy", DEFERRED)
@given(history=st.lists(HAPPENINGS, max_size=60), delays=DELAYS)
@example(history=LEFT_OUT_AT_THE_GRANT, delays=Delays(0, 1))
@settings(max_examples=60, deadline=None)
def test_no_batch_goes_before_its_window_unless_it_is_full(
    policy: str, history: list[Happening], delays: Delays
) -> None:
    """Not before ``deadline - l(size + 1) - delay``, that of all that waited then."""
    player = new_player(policy, delays, num_gpus=3)
    play(player, only_jobs(history))
    for sent in player.sent:
        jobs = sent.batch.jobs
        spec = next(spec for spec in SPECS if spec.key == sent.batch.model)
        waited = {id(job) for job in player.jobs if job.model == spec.key}
        waited &= {id(job) for job in player.jobs if job.arrived_at_ns <= sent.at_ns}
        waited -= {
            id(job)
            for other in player.sent
            if other.batch.number < sent.batch.number
            for job in other.batch.jobs
        }
        waited -= {id(drop.job) for drop in player.dropped if drop.at_ns <= sent.at_ns}
        size = min(len(waited), spec.size_max)
        if size < spec.size_max:
            opens_at_ns = jobs[0].deadline_ns - spec.batch_ns[size + 1] - delays.of(size)
            assert sent.at_ns >= opens_at_ns


@pytest.mark.parametrize("policy", DEFERRED)
@given(gaps_ns=st.lists(st.integers(0, 9), min_size=1, max_size=20), delays=DELAYS)
@settings(max_examples=100, deadline=None)
def test_with_idle_gpus_a_batch_goes_at_its_frontrun_exactly(
    policy: str, gaps_ns: list[int], delays: Delays
) -> None:
    """Against the rule as the paper tells it, with as many GPUs as jobs: what waits goes as soon as
    one more could not join it.
    """
    spec = linear("a", 1, 5, slo_ns=40, size_max=7)
    player = Player(make_batcher(policy, delays), delays)
    player.add_model(spec)
    for gpu in range(len(gaps_ns)):
        player.add_gpu(gpu, ["a"])
    for gap_ns in gaps_ns:
        player.advance(player.now_ns + gap_ns)
        player.submit("a", spec.slo_ns)
    player.advance(END_NS)
    made = [(sent.at_ns, len(sent.batch.jobs)) for sent in player.sent]
    assert made == list(frontrun_batches(spec, delays, player.jobs))


def frontrun_batches(spec: ModelSpec, delays: Delays, jobs: list[Job]) -> list[tuple[int, int]]:
    """(instant, size) of every batch where a GPU is always idle."""
    made: list[tuple[int, int]] = []
    waiting: list[Job] = []
    arrivals_ns = [job.arrived_at_ns for job in jobs]
    for job, next_at_ns in zip(jobs, [*arrivals_ns[1:], NEVER_NS], strict=True):
        waiting.append(job)
        now_ns = job.arrived_at_ns
        while waiting:
            size, due_ns = len(waiting), waiting[0].deadline_ns
            if size < spec.size_max:
                opens_at_ns = due_ns - spec.batch_ns[size + 1] - delays.of(size)
                if opens_at_ns > now_ns and next_at_ns <= opens_at_ns:
                    break
                now_ns = max(now_ns, opens_at_ns)
            while now_ns + delays.of(size) + spec.batch_ns[size] > due_ns:
                size -= 1
            made.append((now_ns, size))
            del waiting[:size]
    return made


def test_a_full_batch_goes_at_once() -> None:
    player = new_player("deferred", Delays(), num_gpus=1)
    for _ in range(7):
        player.submit("a", 1000)
    assert [(sent.at_ns, len(sent.batch.jobs)) for sent in player.sent] == [(0, 7)]


def test_steady_starts_with_enough() -> None:
    """With two GPUs the staggered size is 3; two give 2/7 of 3/8 a job: less than 0.955."""
    player = new_player("steady", Delays(), num_gpus=2)
    for _ in range(2):
        player.submit("a", 1000)
    assert not player.sent
    player.submit("a", 1000)
    assert [(sent.at_ns, len(sent.batch.jobs)) for sent in player.sent] == [(0, 3)]


def test_steady_waits_no_longer_than_its_largest_batch_can_use() -> None:
    """Two GPUs, and 4 jobs at most in 11: staggered, 16.5 from arrival to end. Alone it takes 5,
    and the window opens where a second could not join (7). A longer target changes nothing.
    """
    for target_ns in (20, 1000):
        player = new_player("steady", Delays(), num_gpus=2)
        player.submit("b", target_ns)
        player.advance(END_NS)
        assert [sent.at_ns for sent in player.sent] == [16 - 7]


def test_steady_waits_no_longer_than_for_the_models_own_target() -> None:
    player = new_player("steady", Delays(), num_gpus=2)
    player.submit("a", 1000)
    player.advance(END_NS)
    assert [sent.at_ns for sent in player.sent] == [12 - 7]


def test_an_earlier_deadline_that_comes_later_moves_the_offer_of_its_model() -> None:
    """`b` is offered, without a GPU that could take it; then comes a job that is due too soon."""
    player = new_player("deferred-prefix", Delays(), num_gpus=0)
    player.submit("b", 13)
    player.advance(7)
    for _ in range(3):
        player.submit("b", 100)
    assert not player.dropped
    short = player.submit("b", 2)
    assert [dropped.job for dropped in player.dropped] == [short]


def test_the_more_urgent_model_has_the_gpu_although_its_urgent_job_came_last() -> None:
    player = new_player("deferred-prefix", Delays(), num_gpus=0)
    for _ in range(4):
        player.submit("b", 100)  # full: offered, latest at 89
    for _ in range(7):
        player.submit("a", 60)  # full: offered, latest at 48
    urgent = player.submit("b", 30)
    player.advance(5)
    player.add_gpu(0, ["a", "b"])
    assert player.sent[0].batch.jobs[0] is urgent


def test_a_job_whose_target_is_shorter_than_the_timeout_is_dropped_in_time() -> None:
    player = new_player("timeout:0.00003", Delays(), num_gpus=1)
    player.submit("a", 20)
    player.advance(END_NS)
    assert [dropped.at_ns for dropped in player.dropped] == [20 - 6 + 1]


def test_times_that_are_known_better_move_what_waits() -> None:
    """At 0 the window of one job opens at 93 = 100 - l(2); with slower times at 86."""
    player = new_player("deferred", Delays(), num_gpus=1)
    player.submit("a", 100)
    player.advance(10)
    player.add_model(ModelSpec("a", [2 * batch_ns for batch_ns in SPECS[0].batch_ns], 12))
    player.advance(END_NS)
    assert [sent.at_ns for sent in player.sent] == [86]


def test_a_largest_batch_that_becomes_smaller_than_what_waits() -> None:
    player = new_player("deferred", Delays(), num_gpus=1)
    for _ in range(5):
        player.submit("a", 100)
    player.add_model(ModelSpec("a", SPECS[0].batch_ns[:4], 12))
    player.submit("a", 100)
    player.advance(END_NS)
    assert [len(sent.batch.jobs) for sent in player.sent] == [3, 3]
    check_ends(player)


def test_a_cancelled_head_closes_the_window_again() -> None:
    player = new_player("deferred", Delays(), num_gpus=1)
    head = player.submit("a", 50)
    player.submit("a", 80)
    player.advance(20)
    player.cancel(head)
    player.advance(END_NS)
    assert [sent.at_ns for sent in player.sent] == [80 - 7]


def test_jobs_that_come_and_are_cancelled_leave_nothing() -> None:
    player = new_player("deferred", Delays(), num_gpus=1)
    assert isinstance(player.batcher, WindowBatcher)
    for number in range(1000):
        player.cancel(player.submit("a", 100_000 + number))
    assert largest_table(player.batcher) < 100


def test_cancelling_a_job_that_was_sent_changes_nothing() -> None:
    player = new_player("eager", Delays(), num_gpus=1)
    job = player.submit("a", 50)
    assert player.sent
    assert not player.batcher.on_cancel(job, player.now_ns)


def test_a_model_that_goes_takes_its_jobs_along() -> None:
    player = new_player("deferred", Delays(), num_gpus=1)
    player.submit("a", 50)
    kept = player.submit("b", 50)
    effects = player.batcher.remove_model("a")
    assert effects == [Drop([player.jobs[0]], "no_gpu")]
    player.perform(effects)
    player.advance(END_NS)
    assert [sent.batch.jobs for sent in player.sent] == [[kept]]
    assert player.batcher.wake_at_ns > END_NS


def test_without_gpus_jobs_wait_as_long_as_they_can() -> None:
    player = new_player("deferred", Delays(), num_gpus=0)
    player.submit("a", 50)
    player.submit("a", 60)
    player.advance(END_NS)
    assert [(dropped.at_ns, dropped.reason) for dropped in player.dropped] == [
        (50 - 6 + 1, "late"),
        (60 - 6 + 1, "late"),
    ]


def test_a_gpu_that_ends_early_takes_the_next_batch_early() -> None:
    player = new_player("eager", Delays(), num_gpus=1)
    player.run_ns = lambda _: 2
    player.submit("a", 50)
    player.advance(1)
    player.submit("a", 50)
    player.advance(END_NS)
    assert [sent.at_ns for sent in player.sent] == [0, 2]
