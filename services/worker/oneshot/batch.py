"""A batch that the worker holds, and the memory of those that have ended."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.worker.oneshot.effects import Pulled, SendResults
from shared.ids import BatchId, FrontendId, JobId
from shared.wire.messages import BatchDone, BatchStart, JobRef, JobResult


@dataclass(slots=True)
class Batch:
    """A batch between its receipt and its end.

    Attributes:
        jobs: in the order in which they were sent.
        pull_until_ns: when it stops waiting for inputs.
        awaited: jobs whose inputs are still to come.
        values: inputs that have come.
        results: what is to be sent to frontends at the end.
        run_order: jobs on the device; empty before it runs.
    """

    start: BatchStart
    jobs: dict[JobId, FrontendId]
    arrived_at_ns: int
    pull_until_ns: int
    awaited: dict[FrontendId, list[JobId]] = field(default_factory=dict)
    values: dict[JobId, object] = field(default_factory=dict)
    results: list[JobResult] = field(default_factory=list)
    run_order: list[JobId] = field(default_factory=list)
    run_at_ns: int = 0

    def __post_init__(self) -> None:
        for job_id, frontend_id in self.jobs.items():
            self.awaited.setdefault(frontend_id, []).append(job_id)

    def refs(self) -> list[JobRef]:
        """Its jobs, as a report lists them."""
        return [JobRef(job_id=j, frontend_id=f) for j, f in self.jobs.items()]

    def take(self, frontend_id: FrontendId, inputs: Iterable[Pulled]) -> bool:
        """Store awaited inputs of one frontend; False if it brought none of them."""
        missing = dict.fromkeys(self.awaited[frontend_id])
        num_before = len(missing)
        for pulled in inputs:
            if pulled.job_id not in missing:
                continue
            del missing[pulled.job_id]
            if pulled.error:
                self.fail([pulled.job_id], "invalid_input", pulled.error)
            elif not pulled.is_gone:
                self.values[pulled.job_id] = pulled.value
        self.awaited[frontend_id] = list(missing)
        return len(missing) < num_before

    def give_up(self, frontend_id: FrontendId, message: str) -> None:
        """Await nothing more of this frontend: its missing jobs have failed."""
        self.fail(self.awaited.pop(frontend_id), "input_missing", message)

    def fail(self, job_ids: Iterable[JobId], code: str, message: str) -> None:
        """Note that these jobs have no result, and why."""
        self.results += [JobResult(job_id=j, code=code, message=message) for j in job_ids]

    def messages(self, bytes_max: int) -> list[SendResults]:
        """The results, one message a frontend; more only where one would be larger than
        `bytes_max`.
        """
        messages: dict[FrontendId, list[list[JobResult]]] = {}
        left: dict[FrontendId, int] = {}
        for result in self.results:
            frontend_id = self.jobs[result.job_id]
            chunks = messages.setdefault(frontend_id, [])
            left[frontend_id] = left.get(frontend_id, 0) - len(result.values)
            if not chunks or left[frontend_id] < 0:
                chunks.append([])
                left[frontend_id] = bytes_max - len(result.values)
            chunks[-1].append(result)
        return [
            SendResults(frontend_id, self.start.batch_id, tuple(chunk))
            for frontend_id, chunks in messages.items()
            for chunk in chunks
        ]


class EndedBatches:
    """How batches ended, for a while, so that a second copy of a message changes nothing.

    Args:
        keep_ns: how long each is known.
        num_max: how many are known; the oldest are forgotten first.
    """

    def __init__(self, keep_ns: int, num_max: int) -> None:
        self._keep_ns = keep_ns
        self._num_max = num_max
        self._ended: dict[BatchId, tuple[int, BatchDone]] = {}  # oldest first

    def __contains__(self, batch_id: BatchId) -> bool:
        return batch_id in self._ended

    def done(self, batch_id: BatchId) -> BatchDone:
        """What the scheduler was sent."""
        return self._ended[batch_id][1]

    def add(self, batch_id: BatchId, done: BatchDone, now_ns: int) -> None:
        """Remember this end."""
        self._ended.pop(batch_id, None)
        self._ended[batch_id] = (now_ns, done)
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Drop what is too old or too much."""
        while self._ended:
            oldest = next(iter(self._ended))
            is_old = now_ns - self._ended[oldest][0] > self._keep_ns
            if not is_old and len(self._ended) <= self._num_max:
                return
            del self._ended[oldest]
