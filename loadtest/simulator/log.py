"""Everything that happened in a simulated run, in columns."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadtest.simulator.arrivals import Arrivals
from loadtest.simulator.models import SimModel
from services.scheduler.core.batching.job import Job

Ints = NDArray[np.int64]

DONE, PREEMPTED = 0, 1  # ends of a batch
Reason = Literal["late", "crowded", "no_gpu"]
REASONS: tuple[Reason, ...] = ("late", "crowded", "no_gpu")


@dataclass(slots=True, eq=False)
class Batch:
    """A batch on an emulated GPU.

    Attributes:
        sent_at_ns: when the scheduler dispatched it.
        believed_start_ns, believed_end_ns: what the scheduler said at the dispatch.
        here_at_ns: when the GPU has its inputs.
        start_ns, end_ns: what the GPU does, known at once as nothing comes in between; a fault or a
            preemption changes it.
    """

    number: int
    gpu: int
    model: int
    jobs: list[Job]
    sent_at_ns: int
    believed_start_ns: int
    believed_end_ns: int
    here_at_ns: int
    run_ns: int
    start_ns: int = 0
    end_ns: int = 0
    end: int = DONE
    is_over: bool = False


class Log:
    """Filled while a run goes on; `frozen` makes arrays of it."""

    def __init__(self, models: Sequence[SimModel], arrivals: Arrivals, num_gpus: int) -> None:
        self.models = models
        self.arrivals = arrivals
        self.num_gpus = num_gpus
        self._rows: list[tuple[int, ...]] = []
        self._refs = array("q")
        self._drops: list[tuple[int, int, int]] = []
        self._drop_refs = array("q")

    def add_batch(self, batch: Batch) -> None:
        """A batch is over, in whichever way."""
        self._rows.append(
            (
                batch.number,
                batch.gpu,
                batch.model,
                len(batch.jobs),
                batch.end,
                batch.sent_at_ns,
                batch.believed_start_ns,
                batch.believed_end_ns,
                batch.start_ns,
                batch.end_ns,
            )
        )
        self._refs.extend([job.ref for job in batch.jobs])  # type: ignore[misc]

    def add_drop(self, jobs: Sequence[Job], reason: Reason, now_ns: int) -> None:
        """These jobs will not run."""
        self._drops.append((now_ns, REASONS.index(reason), len(jobs)))
        self._drop_refs.extend([job.ref for job in jobs])  # type: ignore[misc]

    def frozen(self) -> "Record":
        """The run in arrays; nothing may be added after it."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 10).T
        number, gpu, model, size, end, sent_at_ns, said_start_ns, said_end_ns, start, stop = rows
        drop_at_ns, reason, drop_size = np.array(self._drops, dtype=np.int64).reshape(-1, 3).T
        return Record(
            models=self.models,
            arrivals=self.arrivals,
            num_gpus=self.num_gpus,
            number=number,
            gpu=gpu,
            model=model,
            size=size,
            end=end,
            sent_at_ns=sent_at_ns,
            believed_start_ns=said_start_ns,
            believed_end_ns=said_end_ns,
            start_ns=start,
            end_ns=stop,
            refs=_as_array(self._refs),
            drop_at_ns=drop_at_ns,
            drop_reason=np.repeat(reason, drop_size),
            drop_size=drop_size,
            drop_refs=_as_array(self._drop_refs),
        )


def _as_array(values: "array[int]") -> Ints:
    return np.frombuffer(values, dtype=np.int64) if values else np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Record:
    """A run. One entry a batch, in the order of their ends: `number` to `end_ns`; one entry a job
    in a batch, batch after batch: `refs` (indices into `arrivals`); one entry a dropped job:
    `drop_refs`, `drop_reason` (index into `REASONS`); one entry a drop: `drop_at_ns`, `drop_size`.
    """

    models: Sequence[SimModel]
    arrivals: Arrivals
    num_gpus: int
    number: Ints
    gpu: Ints
    model: Ints
    size: Ints
    end: Ints
    sent_at_ns: Ints
    believed_start_ns: Ints
    believed_end_ns: Ints
    start_ns: Ints
    end_ns: Ints
    refs: Ints
    drop_at_ns: Ints
    drop_reason: Ints
    drop_size: Ints
    drop_refs: Ints

    @property
    def slo_ns(self) -> Ints:
        """Target of each model."""
        return np.array([model.slo_ns for model in self.models], dtype=np.int64)

    @property
    def deadline_ns(self) -> Ints:
        """Of each arrived job."""
        return self.arrivals.at_ns + self.slo_ns[self.arrivals.model]

    def by_job(self, of_batch: Ints) -> Ints:
        """A batch's entry for each of its jobs."""
        return np.repeat(of_batch, self.size)
