"""The batches that this leader sent and that have not ended."""

from collections.abc import Collection, Iterator
from typing import cast

from services.scheduler.core.batching.effects import Dispatch
from services.scheduler.core.jobs.effects import SendBatch
from services.scheduler.core.jobs.job_limits import JobLimits
from services.scheduler.core.jobs.records import (
    MAX_SILENT_REPORTS,
    Batch,
    Device,
    ModelKey,
    records_of,
)
from shared.ids import BatchId
from shared.wire.messages import BatchStart, JobRef


class Batches:
    """Batches by id, and the messages that start them.

    Args:
        fence: the leader's fencing token; may be raised.
        leadership: name of this scheduler's shard or role.
        name: prefix of batch ids, never used before.
    """

    def __init__(self, limits: JobLimits, *, fence: int, leadership: str, name: str) -> None:
        self.fence = fence
        self._limits = limits
        self._leadership = leadership
        self._name = name
        self._batches: dict[BatchId, Batch] = {}

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    def __contains__(self, batch: Batch) -> bool:
        return batch.batch_id in self._batches

    def get(self, batch_id: BatchId) -> Batch | None:
        return self._batches.get(batch_id)

    def open(self, dispatch: Dispatch, device: Device, now_ns: int) -> tuple[Batch, SendBatch]:
        """A batch to send, and the message."""
        jobs = records_of(dispatch.jobs)
        key = cast(ModelKey, dispatch.model)
        batch = Batch(
            batch_id=self._id_of(dispatch.number),
            number=dispatch.number,
            device=device,
            key=key,
            jobs=jobs,
            ready_at_ns=now_ns + self._limits.ctrl_ns + self._limits.data_ns * len(jobs),
            end_at_ns=dispatch.end_at_ns,
        )
        for job in jobs:
            job.batch = batch
        self._batches[batch.batch_id] = device.batches[batch.batch_id] = batch
        start = BatchStart(
            batch_id=batch.batch_id,
            fence=self.fence,
            leadership=self._leadership,
            model_id=key.model_id,
            fingerprint=key.fingerprint,
            variant=key.variant,
            jobs=[JobRef(job_id=job.job_id, frontend_id=job.frontend_id) for job in jobs],
            start_in_ns=max(dispatch.start_at_ns - now_ns, 0),
            expected_ns=dispatch.end_at_ns - dispatch.start_at_ns,
        )
        return batch, SendBatch(device.worker_id, start)

    def missing(self, device: Device, held: Collection[BatchId]) -> list[Batch]:
        """Batches that too many reports of the device lacked: they never arrived, or the message of
        their end was lost.

        Args:
            held: batches in its newest report.
        """
        for batch in device.batches.values():
            is_held = batch.batch_id in held
            batch.num_reports_without = 0 if is_held else batch.num_reports_without + 1
        return [
            batch
            for batch in device.batches.values()
            if batch.num_reports_without >= MAX_SILENT_REPORTS
        ]

    def finish(self, batch: Batch, now_ns: int) -> int | None:
        """Close a batch that ran.

        Returns:
            The time from when it could have started until its end is known here, which a deadline
            has to cover. None if the end of the batch before it is not known.
        """
        self.close(batch)
        device = batch.device
        began_at_ns = max(batch.ready_at_ns, device.free_since_ns)
        device.free_since_ns = now_ns
        is_behind = any(other.number < batch.number for other in device.batches.values())
        return None if is_behind else now_ns - began_at_ns

    def close(self, batch: Batch) -> None:
        """Remove a batch that ended or is lost."""
        del self._batches[batch.batch_id]
        del batch.device.batches[batch.batch_id]

    def close_all(self, device: Device) -> list[Batch]:
        """Remove and return all batches of a device."""
        lost = list(device.batches.values())
        for batch in lost:
            self.close(batch)
        return lost

    def _id_of(self, number: int) -> BatchId:
        return BatchId(f"{self._name}-{number}")
