"""Batches of an earlier leader that still run."""

from collections.abc import Collection

from services.scheduler.core.jobs.records import Device
from shared.ids import BatchId, JobId
from shared.wire.messages import BatchRef


class ForeignBatches:
    """Until they end, their devices get no other batch, and their jobs are not run again.

    Args:
        leadership: name of this scheduler's shard or role.
        name: prefix of this leader's own batch ids.
    """

    def __init__(self, *, leadership: str, name: str) -> None:
        self._leadership = leadership
        self._own_prefix = f"{name}-"
        self._jobs: dict[BatchId, list[JobId]] = {}
        self._held: set[JobId] = set()

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._held

    def on_report(self, device: Device, held: Collection[BatchRef]) -> None:
        """A worker reports all its batches, including those of this leader."""
        for batch_id in device.foreign - {ref.batch_id for ref in held}:
            self.remove(device, batch_id)
        for ref in held:
            if self._is_foreign(ref) and ref.batch_id not in device.foreign:
                device.foreign.add(ref.batch_id)
                self._jobs[ref.batch_id] = [job.job_id for job in ref.jobs]
                self._held.update(self._jobs[ref.batch_id])

    def forget_all(self, device: Device) -> None:
        """The worker's process is dead: remove its batches."""
        for batch_id in list(device.foreign):
            self.remove(device, batch_id)

    def remove(self, device: Device, batch_id: BatchId) -> None:
        """Remove a batch that has ended."""
        if batch_id in device.foreign:
            device.foreign.discard(batch_id)
            self._held.difference_update(self._jobs.pop(batch_id, ()))

    def _is_foreign(self, ref: BatchRef) -> bool:
        return ref.leadership == self._leadership and not ref.batch_id.startswith(self._own_prefix)
