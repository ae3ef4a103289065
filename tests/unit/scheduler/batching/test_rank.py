"""The rank table against a table that looks at everything, every time."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from services.scheduler.core.batching.candidates import ExecutionCandidate
from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.batching.rank import BATCHES_MAX, Grant, RankTable

MODELS = ("a", "b", "c")


def table(*models_of: str, free_at_ns: int = 0) -> RankTable:
    """GPUs 0, 1, ..., each with the models of its string."""
    rank = RankTable()
    for gpu, models in enumerate(models_of):
        rank.add_gpu(gpu, list(models), free_at_ns)
    return rank


def test_a_free_gpu_is_granted_at_once_and_the_lowest_number_first() -> None:
    rank = table("a", "a", "a")
    grants = [rank.offer(ExecutionCandidate("a", 100, 0), 10) for _ in range(4)]
    assert [grant and grant.gpu for grant in grants] == [0, 1, 2, None]


def test_a_freed_low_gpu_is_taken_before_high_idle_ones() -> None:
    rank = table("a", "a", "a")
    for _ in range(2):
        assert rank.offer(ExecutionCandidate("a", 100, 0), 0)
    rank.book(0, 20)
    rank.book(1, 10)
    assert rank.offer(ExecutionCandidate("a", 100, 0), 25) == Grant("a", 0, 20)


def test_a_gpu_takes_the_offer_with_the_closest_latest_moment() -> None:
    rank = table("abc", free_at_ns=50)
    for model, latest_at_ns in (("a", 90), ("b", 60), ("c", 70)):
        assert rank.offer(ExecutionCandidate(model, latest_at_ns, 0), 10) is None
    assert rank.match(49) is None
    assert rank.wake_at_ns == 50
    assert rank.match(50) == Grant("b", 0, 50)


def test_an_offer_past_its_latest_moment_is_not_served() -> None:
    rank = table("ab", free_at_ns=50)
    assert rank.offer(ExecutionCandidate("a", 49, 0), 10) is None
    assert rank.offer(ExecutionCandidate("b", 50, 0), 10) is None
    assert rank.match(50) == Grant("b", 0, 50)


def test_a_gpu_is_granted_its_network_delay_before_it_is_free() -> None:
    rank = table("a", free_at_ns=50)
    assert rank.offer(ExecutionCandidate("a", 90, 7), 10) is None
    assert rank.wake_at_ns == 43
    assert rank.match(43) == Grant("a", 0, 50)


def test_an_offer_that_is_too_late_for_one_pool_can_be_served_by_another() -> None:
    """`b` needs much delay, so the pool of GPU 0 is looked at early, when `a` can only be served by
    GPU 1, a little later.
    """
    rank = RankTable()
    rank.add_gpu(0, ["a", "b"], 110)
    rank.add_gpu(1, ["a"], 99)
    assert rank.offer(ExecutionCandidate("a", 100, 1), 10) is None
    assert rank.offer(ExecutionCandidate("b", 200, 50), 10) is None
    assert rank.match(60) == Grant("b", 0, 110)
    assert rank.match(98) == Grant("a", 1, 99)


def test_an_offer_that_no_gpu_could_serve_is_served_by_one_that_is_free_early() -> None:
    rank = table("ab", "b")
    assert rank.offer(ExecutionCandidate("a", 0, 0), 0) is not None
    rank.book(0, 110)
    assert rank.offer(ExecutionCandidate("b", 10, 0), 0) is not None
    rank.book(1, 300)
    assert rank.offer(ExecutionCandidate("a", 100, 1), 10) is None
    assert rank.offer(ExecutionCandidate("b", 105, 50), 10) is None
    assert rank.match(60) is None
    rank.on_batch_done(0, 70)
    assert rank.match(70) == Grant("a", 0, 70)


def test_a_gpu_has_at_most_two_batches() -> None:
    rank = table("a")
    for end_at_ns in (10, 20):
        assert rank.offer(ExecutionCandidate("a", 100, 15), 0) is not None
        rank.book(0, end_at_ns)
    assert rank.free_at_ns(0) == NEVER_NS
    assert rank.offer(ExecutionCandidate("a", 100, 50), 0) is None
    rank.on_batch_done(0, 12)
    assert rank.match(12) == Grant("a", 0, 22)  # the second one began 2 later than expected


def test_an_early_end_moves_the_next_batch_forward() -> None:
    rank = table("a")
    for end_at_ns in (10, 20):
        assert rank.offer(ExecutionCandidate("a", 100, 15), 0) is not None
        rank.book(0, end_at_ns)
    rank.on_batch_done(0, 7)
    assert rank.free_at_ns(0) == 17


def test_a_grant_given_back_is_free_for_others() -> None:
    rank = table("ab")
    grant = rank.offer(ExecutionCandidate("a", 100, 0), 5)
    assert grant is not None
    assert rank.offer(ExecutionCandidate("b", 100, 0), 6) is None
    rank.give_back(grant)
    assert rank.match(6) == Grant("b", 0, 0)


def test_a_withdrawn_offer_is_not_served() -> None:
    rank = table("a", free_at_ns=50)
    assert rank.offer(ExecutionCandidate("a", 90, 0), 10) is None
    rank.withdraw("a")
    assert rank.match(50) is None
    assert rank.wake_at_ns > NEVER_NS // 2


def test_a_gpu_that_goes_takes_its_place_in_all_heaps_along() -> None:
    rank = table("a", "a")
    rank.remove_gpu(0)
    assert rank.offer(ExecutionCandidate("a", 90, 0), 10) == Grant("a", 1, 0)
    rank.add_gpu(0, ["a"], 20)
    assert rank.offer(ExecutionCandidate("a", 90, 0), 15) is None
    assert rank.match(20) == Grant("a", 0, 20)


def test_a_gpu_that_changes_its_models_stays_busy() -> None:
    rank = table("a")
    assert rank.offer(ExecutionCandidate("a", 90, 0), 0)
    rank.book(0, 40)
    rank.add_gpu(0, ["a", "b"], 5)
    assert rank.free_at_ns(0) == 40
    assert rank.num_gpus_of("b") == 1
    assert rank.offer(ExecutionCandidate("b", 90, 0), 5) is None
    assert rank.match(40) == Grant("b", 0, 40)


def test_a_waiting_offer_meets_a_gpu_of_a_new_kind() -> None:
    rank = RankTable()
    assert rank.offer(ExecutionCandidate("a", 90, 0), 0) is None
    assert rank.num_gpus_of("a") == 0
    rank.add_gpu(3, ["a", "b"], 5)
    assert rank.match(5) == Grant("a", 3, 5)


def test_reset_forgets_batches_that_are_overdue() -> None:
    rank = table("a")
    for end_at_ns in (10, 20):
        assert rank.offer(ExecutionCandidate("a", 100, 15), 0)
        rank.book(0, end_at_ns)
    rank.reset(0, 9)
    assert rank.free_at_ns(0) == NEVER_NS
    rank.reset(0, 30)
    assert rank.free_at_ns(0) == 30
    rank.on_batch_done(0, 40)
    assert rank.free_at_ns(0) == 30


def test_reset_of_a_granted_gpu_does_not_grant_it_again() -> None:
    rank = table("ab")
    assert rank.offer(ExecutionCandidate("a", 100, 0), 0)
    rank.book(0, 10)
    assert rank.offer(ExecutionCandidate("a", 100, 0), 20) is not None
    rank.reset(0, 21)
    assert rank.offer(ExecutionCandidate("b", 100, 0), 22) is None


@dataclass
class NaiveGpu:
    """What the naive table knows of a GPU."""

    models: frozenset[str]
    free_at_ns: int
    is_granted: bool = False
    ends: list[int] = field(default_factory=list)

    def can_start(self, at_ns: int) -> bool:
        return not self.is_granted and len(self.ends) < BATCHES_MAX and self.free_at_ns <= at_ns


class RankMachine(RuleBasedStateMachine):
    """Random events; every grant is held against all offers and all GPUs."""

    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.delays_ns = [0]
        self.rank = RankTable()
        self.now_ns = 0
        self.gpus: dict[int, NaiveGpu] = {}
        self.offers: dict[Hashable, ExecutionCandidate] = {}
        self.held: dict[int, Grant] = {}

    @initialize(
        delays_ns=st.sampled_from([[0], [15], [0, 1, 15]]),
        kinds=st.lists(st.sampled_from([{"a"}, {"a", "b"}, {"b", "c"}]), min_size=1, max_size=3),
    )
    def begin(self, delays_ns: list[int], kinds: list[set[str]]) -> None:
        """GPUs of some kinds, and offers with one delay or several."""
        self.delays_ns = delays_ns
        for gpu, models in enumerate(kinds):
            self.add_gpu(gpu, frozenset(models))

    @rule(gpu=st.integers(0, 3), models=st.frozensets(st.sampled_from(MODELS), min_size=1))
    def add_gpu(self, gpu: int, models: frozenset[str]) -> None:
        self.rank.add_gpu(gpu, models, self.now_ns)
        if gpu in self.gpus:
            self.gpus[gpu].models = models
        else:
            self.gpus[gpu] = NaiveGpu(models, self.now_ns)

    @rule(gpu=st.integers(0, 3))
    def remove_gpu(self, gpu: int) -> None:
        if gpu in self.gpus:
            self.rank.remove_gpu(gpu)
            del self.gpus[gpu]
            self.held.pop(gpu, None)

    @rule(passed_ns=st.integers(0, 20))
    def wait(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @rule()
    def wait_for_its_alarm(self) -> None:
        if self.rank.wake_at_ns < NEVER_NS // 2:
            self.now_ns = max(self.now_ns, self.rank.wake_at_ns)

    @rule(
        target=grants,
        model=st.sampled_from(MODELS),
        latest_in_ns=st.integers(0, 60),
        delay=st.integers(0, 2),
    )
    def offer(self, model: str, latest_in_ns: int, delay: int) -> object:
        delay_ns = self.delays_ns[delay % len(self.delays_ns)]
        offer = ExecutionCandidate(model, self.now_ns + latest_in_ns, delay_ns)
        self.offers.pop(model, None)
        start_at_ns = self.now_ns + delay_ns
        fit = [gpu for gpu, known in self.gpus.items() if self._fits(known, model, start_at_ns)]
        grant = self.rank.offer(offer, self.now_ns)
        assert (grant.gpu if grant else None) == min(fit, default=None)
        if grant is None:
            self.offers[model] = offer
            return multiple()
        return self._take(grant)

    def _fits(self, gpu: NaiveGpu, model: Hashable, start_at_ns: int) -> bool:
        return model in gpu.models and gpu.can_start(start_at_ns)

    @rule(model=st.sampled_from(MODELS))
    def withdraw(self, model: str) -> None:
        self.rank.withdraw(model)
        self.offers.pop(model, None)

    @rule(target=grants)
    def match(self) -> object:
        grant = self.rank.match(self.now_ns)
        if grant is not None:
            self._check_match(grant)
            return self._take(grant)
        for offer in self.offers.values():
            for known in self.gpus.values():
                is_due = self._fits(known, offer.model, self.now_ns + offer.delay_ns)
                is_in_time = max(known.free_at_ns, self.now_ns) <= offer.latest_at_ns
                assert not (is_due and is_in_time), f"{offer} and {known} at {self.now_ns}"
        assert self.rank.wake_at_ns > self.now_ns, "woken for ever"
        return multiple()

    def _check_match(self, grant: Grant) -> None:
        """Of the GPUs that serve the same models as the granted one, it has the lowest number of
        those free when the first of them is; of the offers to them it is the most urgent one.
        """
        kind = self.gpus[grant.gpu].models
        pool = {gpu: known for gpu, known in self.gpus.items() if known.models == kind}
        free = [known.free_at_ns for known in pool.values() if known.can_start(NEVER_NS - 1)]
        start_at_ns = max(min(free), self.now_ns)
        assert grant.gpu == min(gpu for gpu, known in pool.items() if known.can_start(start_at_ns))
        offers = [offer for offer in self.offers.values() if offer.model in kind]
        assert min(free) - max(offer.delay_ns for offer in offers) <= self.now_ns
        in_time = [offer.latest_at_ns for offer in offers if offer.latest_at_ns >= start_at_ns]
        latest_at_ns = self.offers[grant.model].latest_at_ns
        assert latest_at_ns == min(in_time)

    def _take(self, grant: Grant) -> Grant:
        gpu = self.gpus[grant.gpu]
        assert grant.model in gpu.models
        assert not gpu.is_granted, f"GPU {grant.gpu} is granted twice"
        assert grant.free_at_ns == gpu.free_at_ns
        gpu.is_granted = True
        self.offers.pop(grant.model, None)
        self.held[grant.gpu] = grant
        return grant

    @rule(grant=consumes(grants), run_ns=st.integers(1, 30))
    def book(self, grant: Grant, run_ns: int) -> None:
        if self.held.get(grant.gpu) is grant:
            del self.held[grant.gpu]
            gpu = self.gpus[grant.gpu]
            gpu.is_granted = False
            gpu.ends.append(max(grant.free_at_ns, self.now_ns) + run_ns)
            gpu.free_at_ns = gpu.ends[-1]
            self.rank.book(grant.gpu, gpu.ends[-1])

    @rule(grant=consumes(grants))
    def give_back(self, grant: Grant) -> None:
        if self.held.get(grant.gpu) is grant:
            del self.held[grant.gpu]
            gpu = self.gpus[grant.gpu]
            gpu.is_granted = False
            gpu.free_at_ns = grant.free_at_ns
            self.rank.give_back(grant)

    @rule(gpu=st.integers(0, 3))
    def end_batch(self, gpu: int) -> None:
        self.rank.on_batch_done(gpu, self.now_ns)
        known = self.gpus.get(gpu)
        if known is None or not known.ends:
            return
        shift_ns = self.now_ns - known.ends.pop(0)
        known.ends = [end_at_ns + shift_ns for end_at_ns in known.ends]
        if not known.is_granted:
            known.free_at_ns = known.ends[-1] if known.ends else self.now_ns

    @rule(gpu=st.integers(0, 3))
    def reset(self, gpu: int) -> None:
        known = self.gpus.get(gpu)
        if known is None:
            return
        self.rank.reset(gpu, self.now_ns)
        if any(end_at_ns <= self.now_ns for end_at_ns in known.ends):
            known.ends = []
            if not known.is_granted:
                known.free_at_ns = self.now_ns

    @invariant()
    def knows_the_same(self) -> None:
        assert len(self.rank.gpus) == len(self.gpus)
        assert set(self.rank.gpus) == set(self.gpus)
        for model in MODELS:
            num_gpus = sum(model in known.models for known in self.gpus.values())
            assert self.rank.num_gpus_of(model) == num_gpus
        for gpu, known in self.gpus.items():
            is_away = known.is_granted or len(known.ends) == BATCHES_MAX
            assert self.rank.free_at_ns(gpu) == (NEVER_NS if is_away else known.free_at_ns)

    @invariant()
    def wakes_in_time(self) -> None:
        """The alarm is not later than the first moment at which a GPU should be granted."""
        due = [
            known.free_at_ns - offer.delay_ns
            for offer in self.offers.values()
            for known in self.gpus.values()
            if self._fits(known, offer.model, offer.latest_at_ns)
            and offer.latest_at_ns >= self.now_ns
        ]
        assert self.rank.wake_at_ns <= max(min(due, default=NEVER_NS), self.now_ns)


TestRankMachine = RankMachine.TestCase
TestRankMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
