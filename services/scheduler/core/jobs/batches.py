"""The batches that this leader sent and that are not over."""

from collections.abc import Iterator
from typing import cast

from services.scheduler.core.batching.effects import Dispatch
from services.scheduler.core.jobs.effects import CancelBatch, SendBatch
from services.scheduler.core.jobs.limits import JobLimits
from services.scheduler.core.jobs.records import Batch, Device, ModelKey, Submitted
from shared.ids import BatchId
from shared.messages import BatchCancel, BatchRef, BatchStart, JobRef


class Batches:
    """Batches by id, and the messages that begin and stop them.

    Args:
        fence: the leader's fencing token; may be raised.
        office: which of the schedulers that work at the same time this is.
        name: prefix of batch ids, never used before.
    """

    def __init__(self, limits: JobLimits, *, fence: int, office: str, name: str) -> None:
        self.fence = fence
        self._limits = limits
        self._office = office
        self._name = name
        self._batches: dict[BatchId, Batch] = {}

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    def __contains__(self, batch: Batch) -> bool:
        return batch.batch_id in self._batches

    def get(self, batch_id: BatchId) -> Batch | None:
        return self._batches.get(batch_id)

    def is_foreign(self, ref: BatchRef) -> bool:
        """Whether an earlier leader of this office sent it."""
        return ref.office == self._office and not ref.batch_id.startswith(f"{self._name}-")

    def open(
        self, dispatch: Dispatch, device: Device, jobs: list[Submitted], now_ns: int
    ) -> tuple[Batch, SendBatch]:
        """A batch to send, and the message."""
        key = cast(ModelKey, dispatch.model)
        batch = Batch(
            batch_id=BatchId(f"{self._name}-{dispatch.number}"),
            number=dispatch.number,
            device=device,
            key=key,
            jobs=jobs,
            ready_at_ns=now_ns + self._limits.ctrl_ns + self._limits.data_ns * len(jobs),
            end_at_ns=dispatch.end_at_ns,
        )
        for submitted in jobs:
            submitted.batch = batch
        self._batches[batch.batch_id] = device.batches[batch.batch_id] = batch
        start = BatchStart(
            batch_id=batch.batch_id,
            fence=self.fence,
            office=self._office,
            model_id=key.model_id,
            variant=key.variant,
            jobs=[JobRef(job_id=job.job_id, frontend_id=job.frontend_id) for job in jobs],
            start_in_ns=max(dispatch.start_at_ns - now_ns, 0),
            expected_ns=dispatch.end_at_ns - dispatch.start_at_ns,
        )
        return batch, SendBatch(device.worker_id, start)

    def stop(self, batch: Batch) -> CancelBatch:
        """Close a batch that shall not run on; its jobs wait again. Returns the message."""
        self.close(batch)
        for submitted in batch.jobs:
            submitted.batch = None
        cancel = BatchCancel(batch_id=batch.batch_id, fence=self.fence, office=self._office)
        return CancelBatch(batch.device.worker_id, cancel)

    def close(self, batch: Batch) -> None:
        """It is over, or lost."""
        del self._batches[batch.batch_id]
        del batch.device.batches[batch.batch_id]
