"""A batcher in virtual time, with GPUs that run what they are sent, one batch after the other."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from services.scheduler.core.batching.batcher import Batcher
from services.scheduler.core.batching.effects import Dispatch, Drop, DropReason, Effect
from services.scheduler.core.batching.job import Delays, Job, ModelSpec

WAKES_MAX = 200  # that a batcher may want at one instant


@dataclass(frozen=True)
class Sent:
    """A batch, and when it was sent."""

    at_ns: int
    batch: Dispatch


@dataclass(frozen=True)
class Dropped:
    """A job that was dropped, and when."""

    at_ns: int
    job: Job
    reason: DropReason


class Player:
    """Moves time; between two calls everything that is due happens.

    Args:
        delays: what a dispatch takes to reach a GPU.
        run_ns: real time of a batch; by default what the batcher expects.
    """

    def __init__(
        self,
        batcher: Batcher,
        delays: Delays | None = None,
        run_ns: Callable[[Dispatch], int] | None = None,
    ) -> None:
        self.batcher = batcher
        self.delays = delays or Delays()
        self.now_ns = 0
        self.sent: list[Sent] = []
        self.dropped: list[Dropped] = []
        self.jobs: list[Job] = []
        self.cancelled: list[Job] = []
        self.run_ns = run_ns or (lambda batch: batch.end_at_ns - batch.start_at_ns)
        self.held: dict[int, list[tuple[int, Dispatch]]] = {}  # by GPU: (end, batch)

    @property
    def ended(self) -> list[Job]:
        """Jobs that were sent, dropped or cancelled; one that met two ends is in it twice."""
        sent = [job for sent in self.sent for job in sent.batch.jobs]
        return [*sent, *(dropped.job for dropped in self.dropped), *self.cancelled]

    def add_model(self, spec: ModelSpec) -> None:
        self.batcher.add_model(spec)

    def add_gpu(self, gpu: int, models: Sequence[Hashable]) -> None:
        self.held.setdefault(gpu, [])
        self.perform(self.batcher.add_gpu(gpu, models, self.now_ns))

    def remove_gpu(self, gpu: int) -> None:
        self.held.pop(gpu)
        self.perform(self.batcher.remove_gpu(gpu, self.now_ns))

    def submit(self, model: Hashable, slo_ns: int, ref: object = None) -> Job:
        job = Job(model, self.now_ns + slo_ns, self.now_ns, ref)
        self.jobs.append(job)
        self.perform(self.batcher.on_job(job, self.now_ns))
        return job

    def cancel(self, job: Job) -> None:
        """Cancel a job that waits."""
        self.cancelled.append(job)
        self.perform(self.batcher.on_cancel(job, self.now_ns))

    def advance(self, until_ns: int) -> None:
        """Let everything happen before `until_ns`, and stop there."""
        assert until_ns >= self.now_ns, "time runs forward"
        num_wakes = 0
        while True:
            ends = [(held[0][0], gpu) for gpu, held in self.held.items() if held]
            end_at_ns, gpu = min(ends, default=(until_ns, -1))
            wake_at_ns = max(self.batcher.wake_at_ns, self.now_ns)
            next_at_ns = min(end_at_ns, wake_at_ns)
            if next_at_ns >= until_ns:
                break
            num_wakes = 0 if next_at_ns > self.now_ns else num_wakes + 1
            assert num_wakes < WAKES_MAX, f"woken for ever at {self.now_ns} ns"
            self.now_ns = next_at_ns
            if end_at_ns <= wake_at_ns:
                self.held[gpu].pop(0)
                self.perform(self.batcher.on_batch_done(gpu, self.now_ns))
            else:
                self.perform(self.batcher.on_wake(self.now_ns))
        self.now_ns = until_ns

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dispatch(gpu=gpu):
                    self.sent.append(Sent(self.now_ns, effect))
                    held = self.held[gpu]
                    free_at_ns = held[-1][0] if held else self.now_ns
                    here_at_ns = self.now_ns + self.delays.of(len(effect.jobs))
                    held.append((max(free_at_ns, here_at_ns) + self.run_ns(effect), effect))
                case Drop(jobs, reason):
                    self.dropped += [Dropped(self.now_ns, job, reason) for job in jobs]


def linear(key: str, alpha_ns: int, beta_ns: int, slo_ns: int, size_max: int = 64) -> ModelSpec:
    """A model whose batches take ``alpha * size + beta``."""
    table = [0, *(alpha_ns * size + beta_ns for size in range(1, size_max + 1))]
    return ModelSpec(key, table, slo_ns)
