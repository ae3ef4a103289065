"""The rank table as a process of its own: matches offers of several scheduler shards to workers.

Source: deferred batch scheduling, section 4.2 (RankThread). Control messages take a network hop
each way; shards allow for it in their dispatch delay.
"""

from dataclasses import dataclass, replace

from services.scheduler.core.base.effects import ProbeWorker
from services.scheduler.core.base.timers import Timers
from services.scheduler.core.batching.candidates import ExecutionCandidate
from services.scheduler.core.batching.rank import Grant, RankTable
from services.scheduler.core.jobs.devices import Devices
from services.scheduler.core.jobs.effects import JobsEffect, SendGrant
from services.scheduler.core.jobs.job_limits import JobLimits
from services.scheduler.core.jobs.meter import INTERVAL_NS, Meter
from services.scheduler.core.jobs.records import ModelKey
from shared.ids import BatchId, WorkerId
from shared.wire.messages import BatchDone, RankBooked, RankGrant, RankOffer, WorkerReport


@dataclass(frozen=True, slots=True)
class _Granted:
    grant: Grant
    at_ns: int


class RankCore:
    """Every ``on_...`` returns the effects to perform, in order.

    Args:
        first_grant: number of the first grant; must grow from one rank process to the next.
    """

    def __init__(self, limits: JobLimits, *, started_at_ns: int, first_grant: int = 1) -> None:
        self._limits = limits
        self._rank = RankTable()
        self._devices = Devices()
        self._timers = Timers()
        self._out: list[JobsEffect] = []
        self._shard_of: dict[ModelKey, int] = {}
        self._last_seq: dict[ModelKey, int] = {}
        self._granted: dict[int, _Granted] = {}
        self._seen_at_ns: dict[int, int] = {}  # by device
        self._probed_at_ns: dict[int, int] = {}
        self._last_done: dict[int, BatchId] = {}
        self._next_grant = first_grant
        self._meter = Meter(limits.scaling)
        self._timers.at(started_at_ns + INTERVAL_NS, self._advise)

    def on_report(self, report: WorkerReport, now_ns: int) -> list[JobsEffect]:
        """A worker reports its state."""
        change = self._devices.take_report(report, now_ns)
        if change is not None:
            number, keys = change.device.number, change.device.keys
            is_known = number in self._rank.gpus
            self._seen_at_ns[number] = now_ns
            if is_known and (change.restarted or not keys):
                self._remove(number)
                is_known = False
            if keys and (change.keys_changed or not is_known):
                busy_ns = max((batch.remaining_ns for batch in report.batches), default=0)
                self._rank.add_gpu(number, keys, now_ns + max(busy_ns, 0))
            elif is_known and not report.batches:
                self._rank.reset(number, now_ns)
        return self._match(now_ns)

    def on_worker_gone(self, worker_id: WorkerId, now_ns: int) -> list[JobsEffect]:
        """A probed worker does not respond."""
        device = self._devices.get(worker_id)
        if device is not None and device.number in self._rank.gpus:
            self._devices.close(device)
            self._remove(device.number)
        return self._match(now_ns)

    def on_offer(self, message: RankOffer, now_ns: int) -> list[JobsEffect]:
        """A shard's model offers a schedulable batch, or withdraws it."""
        key = ModelKey(message.model_id, message.fingerprint, message.variant)
        is_stale = message.seq <= self._last_seq.get(key, 0)
        if is_stale and self._shard_of.get(key) == message.shard:
            return self._match(now_ns)
        self._last_seq[key] = message.seq
        self._shard_of[key] = message.shard
        if message.latest_in_ns is None:
            self._rank.withdraw(key)
        else:
            latest_at_ns = now_ns + message.latest_in_ns
            candidate = ExecutionCandidate(key, latest_at_ns, message.delay_ns)
            grant = self._rank.offer(candidate, now_ns)
            if grant is not None:
                self._send(grant, now_ns)
        return self._match(now_ns)

    def on_booked(self, message: RankBooked, now_ns: int) -> list[JobsEffect]:
        """A shard reports what it sent to a worker that it was granted."""
        self._meter.count(message.num_good, message.num_bad)
        granted = self._granted.pop(message.grant_id, None)
        if granted is not None:
            self._settle(granted, message, now_ns)
        return self._match(now_ns)

    def on_batch_done(self, done: BatchDone, now_ns: int) -> list[JobsEffect]:
        """A worker has finished a batch."""
        device = self._devices.get(done.worker_id)
        if device is not None:
            self._seen_at_ns[device.number] = now_ns
            if done.batch_id != self._last_done.get(device.number):  # else a duplicate
                self._last_done[device.number] = done.batch_id
                self._meter.ran(done.run_ns)
                self._rank.on_batch_done(device.number, now_ns)
        return self._match(now_ns)

    def on_wake(self, now_ns: int) -> list[JobsEffect]:
        """The instant asked for with `WakeAt` has come."""
        self._timers.run_due(now_ns)
        return self._match(now_ns)

    def _settle(self, granted: _Granted, message: RankBooked, now_ns: int) -> None:
        grant = granted.grant
        if message.is_refused:  # the shard sees another state of the worker: let others go first
            wait_ns = self._limits.grant_ns
            self._rank.give_back(replace(grant, free_at_ns=now_ns + wait_ns))
            self._probe(grant.gpu, granted.at_ns, now_ns)
        elif message.end_in_ns is None:
            self._rank.give_back(grant)
        else:
            end_at_ns = now_ns + message.end_in_ns
            self._rank.book(grant.gpu, end_at_ns)
            overdue_at_ns = end_at_ns + self._limits.overdue_ns
            self._timers.at(overdue_at_ns, lambda at_ns: self._probe(grant.gpu, now_ns, at_ns))

    def _probe(self, number: int, since_ns: int, now_ns: int) -> None:
        """Probe the worker, unless it reported or was probed since then."""
        last_ns = max(self._seen_at_ns.get(number, 0), self._probed_at_ns.get(number, 0))
        if number in self._rank.gpus and last_ns <= since_ns:
            self._probed_at_ns[number] = now_ns
            self._out.append(ProbeWorker(self._devices.numbered(number).worker_id))

    def _remove(self, number: int) -> None:
        """Remove a GPU and its grants; if the worker returns, it is a new GPU."""
        self._rank.remove_gpu(number)
        void = [key for key, granted in self._granted.items() if granted.grant.gpu == number]
        for grant_id in void:
            del self._granted[grant_id]

    def _advise(self, now_ns: int) -> None:
        self._devices.forget(now_ns)
        self._out.append(
            self._meter.advise(
                self._devices.num_ready, now_ns, is_needed=self._devices.is_any_known
            )
        )
        self._timers.at(now_ns + INTERVAL_NS, self._advise)

    def _match(self, now_ns: int) -> list[JobsEffect]:
        while (grant := self._rank.match(now_ns)) is not None:
            self._send(grant, now_ns)
        effects, self._out = self._out, []
        effects += self._timers.ask(self._rank.wake_at_ns)
        return effects

    def _send(self, grant: Grant, now_ns: int) -> None:
        key = grant.model
        assert isinstance(key, ModelKey)
        grant_id = self._next_grant
        self._next_grant += 1
        self._granted[grant_id] = _Granted(grant, now_ns)
        message = RankGrant(
            grant_id=grant_id,
            model_id=key.model_id,
            fingerprint=key.fingerprint,
            variant=key.variant,
            worker_id=self._devices.numbered(grant.gpu).worker_id,
            free_in_ns=grant.free_at_ns - now_ns,
        )
        self._out.append(SendGrant(self._shard_of[key], message))
        self._timers.at(now_ns + self._limits.grant_ns, lambda _: self._reclaim(grant_id))

    def _reclaim(self, grant_id: int) -> None:
        """The shard does not answer: take the grant back."""
        granted = self._granted.pop(grant_id, None)
        if granted is not None:
            self._rank.give_back(granted.grant)
