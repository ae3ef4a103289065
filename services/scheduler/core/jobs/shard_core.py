"""The jobs of one scheduler shard, whose rank table is another process."""

from dataclasses import replace
from typing import Any

from services.scheduler.core.batching.rank import Grant
from services.scheduler.core.jobs.core import JobsCore
from services.scheduler.core.jobs.effects import JobsEffect, SendBooked
from services.scheduler.core.jobs.job_limits import JobLimits
from services.scheduler.core.jobs.records import Device, ModelKey
from services.scheduler.core.jobs.remote_rank import RemoteBatcher
from shared.ids import WorkerId
from shared.wire.messages import NO_GRANT, RankBooked, RankGrant


class ShardJobsCore(JobsCore):
    """A `JobsCore` whose workers are granted by a rank process."""

    def __init__(self, batcher: RemoteBatcher, limits: JobLimits, **rest: Any) -> None:
        super().__init__(batcher, limits, **rest)
        self._remote_batcher = batcher
        self._last_grant: dict[WorkerId, int] = {}

    def on_grant(self, message: RankGrant, now_ns: int) -> list[JobsEffect]:
        """A worker is granted for one batch. A duplicate is void, and so is a grant that arrives
        after a later one of the same worker: the rank process has taken it back.
        """
        if message.grant_id <= self._last_grant.get(message.worker_id, 0):
            return self._take_effects(now_ns)
        self._last_grant[message.worker_id] = message.grant_id
        key = ModelKey(message.model_id, message.fingerprint, message.variant)
        device = self.devices.get(message.worker_id)
        if device is None or not device.is_added:
            booked = RankBooked(grant_id=message.grant_id, is_refused=True)
            self._out.append(SendBooked(booked))
            self._perform(self._remote_batcher.on_refused(key, now_ns), now_ns)
            return self._take_effects(now_ns)
        grant = Grant(key, device.number, now_ns + message.free_in_ns)
        self._remote_batcher.remote.expect(device.number, message.grant_id, now_ns)
        self._perform(self._remote_batcher.on_grant(grant, now_ns), now_ns)
        return self._take_effects(now_ns)

    def _is_usable(self, device: Device) -> bool:
        """Whatever else runs there: the rank process knows the batches of other schedulers."""
        return bool(device.keys) and not device.is_refusing

    def _order(self, now_ns: int) -> None:
        """Of all jobs it knows a part: models are not loaded on order where jobs are divided."""

    def _can_serve(self, key: ModelKey) -> bool:
        return self.devices.num_serving(key) > 0

    def _advise(self, now_ns: int) -> None:
        """Report counts to the rank process, which alone knows the workers' load and advises. They
        are sent even when no batch goes out.
        """
        known = {w: grant for w, grant in self._last_grant.items() if self.devices.get(w)}
        self._last_grant = known
        num_good, num_bad = self._meter.take_counts()
        if num_good or num_bad:
            counts = RankBooked(grant_id=NO_GRANT, num_good=num_good, num_bad=num_bad)
            self._out.append(SendBooked(counts))

    def _take_effects(self, now_ns: int) -> list[JobsEffect]:
        remote = self._remote_batcher.remote
        for effect in remote.out:
            if isinstance(effect, SendBooked):
                num_good, num_bad = self._meter.take_counts()
                booked = replace(effect.booked, num_good=num_good, num_bad=num_bad)
                self._out.append(SendBooked(booked))
            else:
                self._out.append(effect)
        remote.out = []
        return super()._take_effects(now_ns)
