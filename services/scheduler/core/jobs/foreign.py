"""Batches that an earlier leader sent and that still run."""

from services.scheduler.core.jobs.records import Device
from shared.ids import BatchId, JobId
from shared.messages import BatchRef


class ForeignBatches:
    """Until they are over their devices get no other batch, and their jobs are not run again."""

    def __init__(self) -> None:
        self._jobs: dict[BatchId, list[JobId]] = {}
        self._held: set[JobId] = set()

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._held

    def add(self, device: Device, ref: BatchRef) -> None:
        """A worker reports a batch that is not ours."""
        if ref.batch_id in device.foreign:
            return
        device.foreign.add(ref.batch_id)
        self._jobs[ref.batch_id] = [job.job_id for job in ref.jobs]
        self._held.update(self._jobs[ref.batch_id])

    def remove(self, device: Device, batch_id: BatchId) -> None:
        """It is over."""
        if batch_id in device.foreign:
            device.foreign.discard(batch_id)
            self._held.difference_update(self._jobs.pop(batch_id, ()))

    def keep_only(self, device: Device, held: set[BatchId]) -> None:
        """The worker holds none but these any more."""
        for batch_id in device.foreign - held:
            self.remove(device, batch_id)
