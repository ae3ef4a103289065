"""Eager batching with preemption, after Shepherd's Flex.

One scheduler sees every queue. A model has one candidate: the largest batch of its waiting jobs
that meets their deadlines. A GPU that becomes free runs the model with the largest candidate; of
equal ones, the most urgent. A job that arrives while no GPU is free may make its model's candidate
so large that it is worth stopping a running batch: if it is `preempt_factor` times as large.
What that batch did is lost and its jobs wait again.

Source: deferred batch scheduling, sections 2.2 and 5; Zhang et al., Shepherd, NSDI 2023, section 5.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import cast

from loadtest.policies.fifo import CentralBatcher, DeadlineQueue
from services.scheduler.core.batching.effects import Dispatch, Drop, Effect
from services.scheduler.core.batching.job import Delays, Job

PREEMPT_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Preempt:
    """An effect that `loadtest.simulator` alone performs, beside those of production: stop this
    batch; what it did is lost. Its jobs are queued again here.
    """

    number: int
    gpu: int


@dataclass(slots=True)
class _Gpu:
    models: frozenset[Hashable]
    running: Dispatch | None = None


class ShepherdBatcher(CentralBatcher):
    """Central, eager batching that prefers large batches, even to running small ones.

    A batch that was preempted is not reported to `on_batch_done`.

    Args:
        delays: from a dispatch to the GPU's start. A GPU waits for it.
        preempt_factor: how many times as large as a running batch one must be to stop it.
    """

    def __init__(self, delays: Delays, preempt_factor: float = PREEMPT_FACTOR) -> None:
        super().__init__(delays)
        self._preempt_factor = preempt_factor
        self._gpus: dict[int, _Gpu] = {}
        self._idle: list[int] = []  # in order, so that the lowest is taken
        self._sizes: Counter[int] = Counter()  # of the running batches

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """Add an idle GPU."""
        self._gpus[gpu] = _Gpu(frozenset(models))
        insort(self._idle, gpu)
        self._run_largest(gpu, now_ns)
        return self._finish()

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """A job has come. Its model must be known."""
        queue = self._queues[job.model]
        queue.push(job)
        self._out += _dropped(queue.take_late(now_ns))
        gpu = self._idle_gpu(job.model)
        if gpu is not None:
            self._run(gpu, queue, now_ns)
        else:
            self._preempt_for(queue, now_ns)
        self._timers.arm(queue)
        return self._finish()

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU's batch is over."""
        state = self._gpus[gpu]
        assert state.running is not None, f"GPU {gpu} runs nothing"
        self._sizes[len(state.running.jobs)] -= 1
        state.running = None
        insort(self._idle, gpu)
        self._run_largest(gpu, now_ns)
        return self._finish()

    def on_wake(self, now_ns: int) -> Sequence[Effect]:
        """The instant `wake_at_ns` has come: some jobs are late."""
        self._out += _dropped(self._timers.due(now_ns))
        return self._finish()

    def _idle_gpu(self, model: Hashable) -> int | None:
        for gpu in self._idle:
            if model in self._gpus[gpu].models:
                return gpu
        return None

    def _run_largest(self, gpu: int, now_ns: int) -> None:
        models = self._gpus[gpu].models
        best: tuple[int, int] | None = None
        best_queue: DeadlineQueue | None = None
        for key, queue in self._queues.items():
            if not queue.jobs or (best and len(queue.jobs) < best[0]) or key not in models:
                continue
            num_skipped, size = queue.largest(now_ns)
            if size:
                latest_ns = queue.jobs[num_skipped].deadline_ns - queue.spec.batch_ns[size]
                if best is None or (size, -latest_ns) > best:
                    best, best_queue = (size, -latest_ns), queue
        if best_queue is not None:
            self._run(gpu, best_queue, now_ns)

    def _preempt_for(self, queue: DeadlineQueue, now_ns: int) -> None:
        """Stop the smallest of the running batches, if that pays; the last begun of the smallest,
        where least is lost.
        """
        size_max = len(queue.jobs) / self._preempt_factor
        if not any(self._sizes[size] for size in range(1, int(size_max) + 1)):
            return
        _, size = queue.largest(now_ns)
        size_max = size / self._preempt_factor
        key, victim, least = queue.spec.key, -1, (0, 0)
        for gpu, state in self._gpus.items():
            running = state.running
            if running is None or len(running.jobs) > size_max or key not in state.models:
                continue
            if running.end_at_ns <= now_ns:
                continue  # It is done; only the news is missing.
            rank = (len(running.jobs), -running.start_at_ns)
            if victim < 0 or rank < least:
                victim, least = gpu, rank
        if victim >= 0:
            self._preempt(victim, queue, now_ns)

    def _preempt(self, gpu: int, queue: DeadlineQueue, now_ns: int) -> None:
        state = self._gpus[gpu]
        stopped = state.running
        assert stopped is not None, f"GPU {gpu} runs nothing"
        self._out.append(cast(Effect, Preempt(stopped.number, gpu)))
        self._sizes[len(stopped.jobs)] -= 1
        state.running = None
        insort(self._idle, gpu)
        self._run(gpu, queue, now_ns)
        home = self._queues[stopped.model]
        for job in stopped.jobs:
            home.push(job)
        self._out += _dropped(home.take_late(now_ns))
        self._timers.arm(home)

    def _run(self, gpu: int, queue: DeadlineQueue, now_ns: int) -> None:
        """Dispatch a queue's candidate, if it has one, to a GPU that is free."""
        num_skipped, size = queue.largest(now_ns)
        if size == 0:
            return
        start_at_ns = now_ns + self._delays.of(size)
        self._number += 1
        batch = Dispatch(
            self._number,
            gpu,
            queue.spec.key,
            queue.take(num_skipped, size),
            start_at_ns,
            start_at_ns + queue.spec.batch_ns[size],
        )
        self._idle.remove(gpu)
        self._gpus[gpu].running = batch
        self._sizes[size] += 1
        self._out.append(batch)

    def _finish(self) -> Sequence[Effect]:
        self.wake_at_ns = self._timers.next_at_ns
        out, self._out = self._out, []
        return out


def _dropped(late: list[Job]) -> list[Effect]:
    return [Drop(late, "late")] if late else []
