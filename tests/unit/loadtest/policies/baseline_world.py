"""Random days for the batchers that deferred batching is compared with, and what must hold in them.

GPUs take exactly as long as the batcher expects, so whatever it dispatches must be in time.
"""

import random
from collections.abc import Hashable
from heapq import heappop, heappush

from loadtest.policies import Policy
from loadtest.policies.shepherd import Preempt
from services.scheduler.core.batching.effects import Dispatch, Drop, Effect
from services.scheduler.core.batching.job import NEVER_NS, Job, ModelSpec

MODELS = [
    ModelSpec("small", [0, 3, 4, 5, 6, 7, 8, 9, 10], slo_ns=24),
    ModelSpec("large", [0, 10, 20, 30, 40], slo_ns=90),
    ModelSpec("strong", [0, 9, 10, 10, 11, 11, 12], slo_ns=30),
]
KEYS = [spec.key for spec in MODELS]
SPECS = {spec.key: spec for spec in MODELS}


def table(alpha: int, beta: int, size_max: int, slo_ns: int, key: Hashable = "m") -> ModelSpec:
    """A model with ``l(b) = alpha b + beta``."""
    return ModelSpec(key, [0, *(alpha * b + beta for b in range(1, size_max + 1))], slo_ns)


def jobs_at(model: Hashable, deadline_ns: int, num: int, now_ns: int = 0) -> list[Job]:
    """Equally urgent jobs."""
    return [Job(model, deadline_ns, now_ns) for _ in range(num)]


def offer(batcher: Policy, jobs: list[Job], now_ns: int = 0) -> list[Effect]:
    """All of the effects of some arrivals."""
    return [effect for job in jobs for effect in batcher.on_job(job, now_ns)]


def sizes(effects: list[Effect]) -> list[tuple[int, Hashable, int]]:
    """(gpu, model, size) of every dispatch."""
    return [(e.gpu, e.model, len(e.jobs)) for e in effects if isinstance(e, Dispatch)]


class World:
    """Runs a batcher on virtual time and checks every effect.

    Args:
        batcher: with no model and no GPU.
        seed: of everything that happens.
        queue_max: batches that may be at a GPU, counting the one that runs.
    """

    def __init__(self, batcher: Policy, seed: int, queue_max: int = 1) -> None:
        self.batcher = batcher
        self.rng = random.Random(seed)
        self.queue_max = queue_max
        self.now_ns = 0
        self.gpus: dict[int, list[str]] = {}
        self.at_gpu: dict[int, list[Dispatch]] = {}
        self.ends: list[tuple[int, int, Dispatch]] = []
        self.outcome: dict[int, str] = {}
        self.jobs: list[Job] = []
        self.numbers: set[int] = set()
        self.preempted: set[int] = set()

    def run(self, num_events: int, gap_ns: int) -> None:
        """Let so many things happen, `gap_ns` apart on average, then let everything end."""
        for spec in MODELS:
            self.batcher.add_model(spec)
        for gpu in range(self.rng.randint(1, 4)):
            self.add_gpu(gpu)
        for _ in range(num_events):
            self.advance(self.now_ns + self.rng.randint(0, 2 * gap_ns))
            self.arrive()
        self.advance(self.now_ns + 10_000)
        undecided = [job for job in self.jobs if id(job) not in self.outcome]
        assert not undecided, f"neither run nor dropped: {undecided}"

    def arrive(self) -> None:
        spec = self.rng.choice(MODELS)
        slo_ns = spec.slo_ns if self.rng.random() < 0.8 else self.rng.randint(1, spec.slo_ns)
        job = Job(spec.key, self.now_ns + slo_ns, self.now_ns)
        self.jobs.append(job)
        self.perform(self.batcher.on_job(job, self.now_ns))

    def add_gpu(self, gpu: int) -> None:
        self.gpus[gpu] = [key for key in map(str, KEYS) if self.rng.random() < 0.8]
        self.at_gpu[gpu] = []
        self.perform(self.batcher.add_gpu(gpu, self.gpus[gpu], self.now_ns))

    def advance(self, until_ns: int) -> None:
        """Batches end and timers fire, batches first."""
        while True:
            wake_at_ns = max(self.batcher.wake_at_ns, self.now_ns)
            end_at_ns = self.ends[0][0] if self.ends else NEVER_NS
            if min(wake_at_ns, end_at_ns) > until_ns:
                break
            if end_at_ns <= wake_at_ns:
                self.now_ns, _, batch = heappop(self.ends)
                if batch.number not in self.preempted:
                    self.finish(batch)
            else:
                self.now_ns = wake_at_ns
                self.perform(self.batcher.on_wake(wake_at_ns))
                assert self.batcher.wake_at_ns > wake_at_ns, "wakes again and again"
        self.now_ns = until_ns

    def finish(self, batch: Dispatch) -> None:
        assert self.at_gpu[batch.gpu].pop(0) is batch, "batches overtook each other"
        for job in batch.jobs:
            self.end(job, "run")
        self.perform(self.batcher.on_batch_done(batch.gpu, self.now_ns))

    def end(self, job: Job, how: str) -> None:
        assert id(job) not in self.outcome, f"{job}: {self.outcome[id(job)]}, then {how}"
        self.outcome[id(job)] = how

    def perform(self, effects: object) -> None:
        assert isinstance(effects, (list, tuple))
        for effect in effects:
            if isinstance(effect, Dispatch):
                self.start(effect)
            elif isinstance(effect, Preempt):
                (batch,) = self.at_gpu[effect.gpu]
                assert batch.number == effect.number, "preempts what does not run"
                self.at_gpu[effect.gpu] = []
                self.preempted.add(effect.number)
            else:
                assert isinstance(effect, Drop)
                assert effect.jobs
                for job in effect.jobs:
                    self.end(job, "dropped")

    def start(self, batch: Dispatch) -> None:
        before = self.at_gpu[batch.gpu]
        assert batch.jobs
        assert batch.number not in self.numbers
        self.numbers.add(batch.number)
        assert batch.model in self.gpus[batch.gpu], "the GPU does not serve it"
        assert len(before) < self.queue_max, "the GPU is busy"
        assert batch.start_at_ns >= self.now_ns
        duration_ns = SPECS[batch.model].batch_ns[len(batch.jobs)]
        assert batch.end_at_ns - batch.start_at_ns == duration_ns
        assert all(job.model == batch.model for job in batch.jobs)
        assert not any(id(job) in self.outcome for job in batch.jobs)
        assert not before or batch.start_at_ns >= before[-1].end_at_ns, "two at once"
        assert batch.end_at_ns <= min(job.deadline_ns for job in batch.jobs), "late"
        before.append(batch)
        heappush(self.ends, (batch.end_at_ns, batch.number, batch))
