"""From submitted jobs to batches on workers and back: carries out the batcher's decisions despite
lost messages, dead workers and leader changes.

Nothing here is durable. Running jobs are learned from the workers' reports; waiting jobs are
submitted again by the frontends, which hold every input.
"""

from collections.abc import Iterable, Sequence

from services.scheduler.core.base.effects import ProbeWorker
from services.scheduler.core.base.timers import Timers
from services.scheduler.core.batching import effects as batching
from services.scheduler.core.batching.batcher import Batcher
from services.scheduler.core.batching.shard import ModelShard
from services.scheduler.core.jobs.answers import DropCode
from services.scheduler.core.jobs.batches import Batches
from services.scheduler.core.jobs.devices import Devices
from services.scheduler.core.jobs.effects import Deposed, JobsEffect, SendHold
from services.scheduler.core.jobs.foreign import ForeignBatches
from services.scheduler.core.jobs.intake import Intake
from services.scheduler.core.jobs.job_limits import JobLimits
from services.scheduler.core.jobs.latencies import Latencies
from services.scheduler.core.jobs.ledger import Ledger, model_key
from services.scheduler.core.jobs.meter import INTERVAL_NS, Meter
from services.scheduler.core.jobs.orders import ModelOrders
from services.scheduler.core.jobs.records import Batch, Device, ModelKey, Submitted, records_of
from services.scheduler.core.partition.solving import Solved
from shared.ids import FrontendId, WorkerId
from shared.wire.messages import (
    SOLE_LEADERSHIP,
    BatchDone,
    JobsCancel,
    JobsSubmit,
    JobSubmit,
    JobWindow,
    WorkerReport,
)

WINDOWS_MAX = 64  # that are reported, the most urgent first


class JobsCore:
    """Every ``on_...`` returns the effects to perform, in order.

    Args:
        batcher: decides which jobs run when and on which GPU.
        fence: this leader's fencing token.
        leadership: name of this scheduler's shard or role.
        started_at_ns: now; the learning period starts here.
        name: prefix of batch ids, never used before.
    """

    def __init__(
        self,
        batcher: Batcher,
        limits: JobLimits,
        *,
        fence: int,
        started_at_ns: int,
        name: str,
        leadership: str = SOLE_LEADERSHIP,
    ) -> None:
        self._batcher = batcher
        self._limits = limits
        self._leadership = leadership
        self._out: list[JobsEffect] = []
        self._timers = Timers()
        self.devices = Devices()
        self._latencies = Latencies(limits.return_ns)
        self._meter = Meter(limits.scaling)
        self._ledger = Ledger(limits.ended_ns, self._meter)
        self._batches = Batches(limits, fence=fence, leadership=leadership, name=name)
        self._foreign = ForeignBatches(leadership=leadership, name=name)
        self._intake = Intake(limits)
        self._orders = ModelOrders(limits.subclusters, started_at_ns, leadership)
        self._timers.at(started_at_ns + limits.learning_ns, self._stop_learning)
        self._timers.at(started_at_ns + INTERVAL_NS, self._end_interval)

    @property
    def num_waiting(self) -> int:
        return len(self._ledger) - self.num_running

    @property
    def num_running(self) -> int:
        return sum(len(batch.jobs) for batch in self._batches)

    def windows(self, now_ns: int) -> list[JobWindow]:
        """Waiting jobs and when they may start; empty if the policy has no windows."""
        if not isinstance(self._batcher, ModelShard):
            return []
        views = sorted(self._batcher.windows(), key=lambda view: view.closes_at_ns)
        return [
            JobWindow(
                model=str(view.key),
                num_waiting=view.num_jobs,
                opens_in_ms=_ms(view.opens_at_ns - now_ns),
                closes_in_ms=_ms(view.closes_at_ns - now_ns),
                is_offered=view.is_offered,
            )
            for view in views[:WINDOWS_MAX]
        ]

    def set_fence(self, fence: int) -> None:
        """This leader starts a new term, above a fencing token that a worker has seen."""
        self._batches.fence = max(self._batches.fence, fence)

    def on_jobs(self, message: JobsSubmit, now_ns: int) -> list[JobsEffect]:
        """A frontend submits jobs, or repeats unacknowledged ones."""
        for submit in self._intake.admit(message, now_ns):
            self._submit(message.frontend_id, submit, now_ns, now_ns)
        return self._take_effects(now_ns)

    def on_cancel(self, message: JobsCancel, now_ns: int) -> list[JobsEffect]:
        """A frontend cancels jobs. Those in a batch run, and find their inputs gone."""
        self._intake.cancel(message.job_ids)
        for job_id in message.job_ids:
            submitted = self._ledger.waiting(job_id)
            if submitted is not None:
                self._ledger.cancel(submitted, now_ns)
                self._perform(self._batcher.on_cancel(submitted.job, now_ns), now_ns)
        return self._take_effects(now_ns)

    def on_report(self, report: WorkerReport, now_ns: int) -> list[JobsEffect]:
        """A worker reports its state."""
        for seen in report.fences:
            if seen.leadership == self._leadership and seen.fence > self._batches.fence:
                self._out.append(Deposed(seen.fence))
                return self._take_effects(now_ns)
        change = self.devices.take_report(report, now_ns)
        if change is None:
            return self._take_effects(now_ns)
        device = change.device
        self._orders.on_report(device, report)
        if change.restarted:
            self._take_off(device, now_ns)
        for card in device.cards:
            for spec in self._latencies.learn(card):
                self._batcher.add_model(spec)
        device.is_refusing = False
        self._reconcile(device, report, now_ns)
        self._settle(device, now_ns, keys_changed=change.keys_changed)
        return self._take_effects(now_ns)

    def on_worker_gone(self, worker_id: WorkerId, now_ns: int) -> list[JobsEffect]:
        """A probed worker does not respond: run its jobs elsewhere, if there is time."""
        device = self.devices.get(worker_id)
        if device is not None:
            self.devices.close(device)
            self._orders.on_gone(device)
            self._take_off(device, now_ns)
        return self._take_effects(now_ns)

    def on_batch_done(self, done: BatchDone, now_ns: int) -> list[JobsEffect]:
        """A worker has finished a batch, or refuses it."""
        device = self.devices.get(done.worker_id)
        if done.leadership != self._leadership:
            if device is not None:  # our batches there could not run before
                device.free_since_ns = now_ns
            return []
        if done.fence > self._batches.fence:
            self._out.append(Deposed(done.fence))
        batch = self._batches.get(done.batch_id)
        if device is not None and done.batch_id in device.foreign:
            self._foreign.remove(device, done.batch_id)
            self._settle(device, now_ns, keys_changed=False)
        if device is None or batch is None or batch.device is not device:
            return self._take_effects(now_ns)
        if done.is_refused:
            self._batches.close(batch)
            device.is_refusing = True  # until its next report: it would refuse again
            self._settle(device, now_ns, keys_changed=False)
            self._requeue(batch.jobs, now_ns)
        else:
            self._account(batch, done, now_ns)
        if device.is_added:
            self._perform(self._batcher.on_batch_done(device.number, now_ns), now_ns)
        return self._take_effects(now_ns)

    def on_partition(self, solved: Solved, now_ns: int) -> list[JobsEffect]:
        """The answer to a `SolvePartition`."""
        self._orders.on_partition(solved)
        return self._take_effects(now_ns)

    def on_wake(self, now_ns: int) -> list[JobsEffect]:
        """The instant of `WakeAt` has come. If it is long past, this process was paused or
        disconnected and could receive no reports.
        """
        if self._timers.is_standstill(now_ns):
            self.devices.restart_silence(now_ns)
        self._timers.run_due(now_ns)
        while self._batcher.wake_at_ns <= now_ns:
            self._perform(self._batcher.on_wake(now_ns), now_ns)
        return self._take_effects(now_ns)

    def _end_interval(self, now_ns: int) -> None:
        for spec in self._latencies.reset_stale({batch.key for batch in self._batches}):
            self._batcher.add_model(spec)
        for device in self.devices.silent(now_ns):
            self._out.append(ProbeWorker(device.worker_id))
        self.devices.forget(now_ns)
        self._order(now_ns)
        self._advise(now_ns)
        self._timers.at(now_ns + INTERVAL_NS, self._end_interval)

    def _order(self, now_ns: int) -> None:
        """Order workers to hold other models, and give them no batch of those that they unload."""
        devices = self.devices.by_number
        for effect in self._orders.on_interval(devices, self._batches.fence, now_ns):
            self._out.append(effect)
            if isinstance(effect, SendHold) and self.devices.order(effect.worker_id, effect.order):
                self._settle(self.devices[effect.worker_id], now_ns, keys_changed=True)

    def _advise(self, now_ns: int) -> None:
        self._out.append(
            self._meter.advise(self.devices.num_ready, now_ns, is_needed=self.devices.is_any_known)
        )

    def _stop_learning(self, now_ns: int) -> None:
        held = self._intake.open()
        for device in self.devices:
            self._settle(device, now_ns, keys_changed=True)
        for early in held:
            self._submit(early.frontend_id, early.submit, early.received_at_ns, now_ns)

    def _submit(
        self, frontend_id: FrontendId, submit: JobSubmit, received_at_ns: int, now_ns: int
    ) -> None:
        job_id = submit.job_id
        if job_id in self._foreign or self._ledger.knows(job_id, now_ns):
            return
        submitted = self._intake.record(frontend_id, submit, received_at_ns, now_ns)
        job, key = submitted.job, model_key(submitted)
        self._orders.on_job(key.model_id)
        if not self._can_serve(key):
            self._drop([submitted], "no_worker", now_ns)
            return
        num_workers = max(self.devices.num_serving(key), 1)
        num_jobs = self._batcher.num_ahead(key, job.deadline_ns) + 1
        if len(self._ledger) >= self._limits.jobs_max:
            self._drop([submitted], "overloaded", now_ns)
        elif not self._latencies.can_do(key, num_jobs, num_workers, job.deadline_ns - now_ns):
            self._drop([submitted], "crowded", now_ns)
        else:
            self._ledger.open(submitted)
            self._perform(self._batcher.on_job(job, now_ns), now_ns)

    def _perform(self, effects: Sequence[batching.Effect], now_ns: int) -> None:
        """Translate the batcher's effects into messages."""
        for effect in effects:
            match effect:
                case batching.Dispatch():
                    self._send(effect, now_ns)
                case batching.Drop(jobs, reason):
                    self._drop(records_of(jobs), reason, now_ns)

    def _send(self, dispatch: batching.Dispatch, now_ns: int) -> None:
        device = self.devices.numbered(dispatch.gpu)
        batch, message = self._batches.open(dispatch, device, now_ns)
        self._out.append(message)
        overdue_at_ns = batch.end_at_ns + self._limits.overdue_ns
        self._timers.at(overdue_at_ns, lambda _: self._on_overdue(batch))

    def _on_overdue(self, batch: Batch) -> None:
        if batch in self._batches:
            self._out.append(ProbeWorker(batch.device.worker_id))

    def _account(self, batch: Batch, done: BatchDone, now_ns: int) -> None:
        """A batch ran: end its jobs, and learn from its run time."""
        took_ns = self._batches.finish(batch, now_ns)
        self._ledger.done(batch.key, batch.jobs, now_ns)
        self._meter.ran(done.run_ns)
        self._orders.on_ran(batch.key.model_id, done.size, done.run_ns)
        if took_ns is not None and 0 < done.size <= len(batch.jobs):
            spec = self._latencies.observe(batch.key, done.size, took_ns)
            if spec is not None:
                self._batcher.add_model(spec)

    def _reconcile(self, device: Device, report: WorkerReport, now_ns: int) -> None:
        """Compare what the worker holds with what it was sent."""
        for batch in self._batches.missing(device, {ref.batch_id for ref in report.batches}):
            if batch in self._batches:  # else preempted for the jobs of one before it
                self._batches.close(batch)
                self._requeue(batch.jobs, now_ns)
                self._perform(self._batcher.on_batch_done(device.number, now_ns), now_ns)
        self._foreign.on_report(device, report.batches)

    def _settle(self, device: Device, now_ns: int, *, keys_changed: bool) -> None:
        """Give the device to the batcher, or take it away, by its current state."""
        wanted = self._is_usable(device) and self._intake.is_open
        if wanted and (keys_changed or not device.is_added):
            device.is_added = True
            self._perform(self._batcher.add_gpu(device.number, device.keys, now_ns), now_ns)
        elif device.is_added and not wanted:
            device.is_added = False
            self._perform(self._batcher.remove_gpu(device.number, now_ns), now_ns)
        else:
            return
        self._drop_unserved(now_ns)

    def _is_usable(self, device: Device) -> bool:
        return bool(device.keys) and not device.foreign and not device.is_refusing

    def _drop_unserved(self, now_ns: int) -> None:
        """Drop jobs whose last worker is gone now, not at their deadline."""
        unserved = [
            submitted
            for submitted in self._ledger.all_waiting()
            if not self._can_serve(model_key(submitted))
        ]
        for submitted in unserved:
            self._perform(self._batcher.on_cancel(submitted.job, now_ns), now_ns)
        still_open = [job for job in unserved if self._ledger.waiting(job.job_id) is job]
        self._drop(still_open, "no_worker", now_ns)

    def _take_off(self, device: Device, now_ns: int) -> None:
        """The worker's process is dead: its batches are lost."""
        batches = self._batches.close_all(device)
        self._foreign.forget_all(device)
        if device.is_added:
            device.is_added = False
            self._perform(self._batcher.remove_gpu(device.number, now_ns), now_ns)
        for batch in batches:
            self._requeue(batch.jobs, now_ns)
        self._drop_unserved(now_ns)

    def _requeue(self, jobs: Iterable[Submitted], now_ns: int) -> None:
        """Queue these jobs again; the batcher drops those that are too late."""
        for submitted in jobs:
            self._ledger.requeue(submitted)
            if not self._can_serve(model_key(submitted)):
                self._drop([submitted], "no_worker", now_ns)
                continue
            self._perform(self._batcher.on_job(submitted.job, now_ns), now_ns)

    def _can_serve(self, key: ModelKey) -> bool:
        """Whether a worker has the model, or may be ordered to load it."""
        return self.devices.num_serving(key) > 0 or self.devices.can_load(key)

    def _drop(self, jobs: list[Submitted], reason: DropCode, now_ns: int) -> None:
        for submitted in jobs:
            key, code = model_key(submitted), reason
            if reason in ("late", "crowded"):
                if self.devices.num_serving(key):
                    self._latencies.miss(key)
                else:
                    code = "no_worker"
            self._ledger.drop([submitted], code, now_ns)

    def _take_effects(self, now_ns: int) -> list[JobsEffect]:
        effects = self._out + self._ledger.take_effects()
        self._out = []
        effects += self._timers.ask(self._batcher.wake_at_ns)
        return effects


def _ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, 2)
