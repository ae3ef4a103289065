"""The worker's side of deferred batches: which are held, whose inputs are awaited, what runs next.

The scheduler decides what a batch is and when it should start. This core pulls the inputs as soon
as a batch is known, while earlier ones still run, and runs batches one at a time in the order in
which they came. An early start harms no one else: the device would be idle otherwise.

Source: deferred batch scheduling, section 4.1 (backends pull inputs from frontends after the
dispatch).
"""

from collections.abc import Collection

from services.worker.oneshot.batch import Batch, EndedBatches
from services.worker.oneshot.effects import (
    BatchLimits,
    Effect,
    Pulled,
    PullInputs,
    Ran,
    RunBatch,
    SendDone,
)
from services.worker.oneshot.holding import HeldModels
from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, ModelId, WorkerId
from shared.wire.messages import (
    BatchDone,
    BatchRef,
    BatchStart,
    JobResult,
    OneshotCard,
    OneshotHold,
)

NOT_FINITE = "the model made a number that is not finite of this input"


class BatchCore:
    """Takes an event and the time, returns what is to be done.

    Args:
        cards: the models it may run.

    Attributes:
        models: which of them it holds.
        fences: highest fencing token seen, by leadership. Batches of lower ones are refused; what
            was accepted under a lower one still runs, and the new leader learns of it from `refs`.
    """

    def __init__(
        self, worker_id: WorkerId, cards: Collection[OneshotCard], limits: BatchLimits
    ) -> None:
        self._worker_id = worker_id
        self._limits = limits
        self.models = HeldModels(cards, limits.models_bytes_max)
        self.fences: dict[str, int] = {}
        self._is_draining = False
        self._running: Batch | None = None
        self._waiting: dict[BatchId, Batch] = {}  # in order of arrival
        self._ended = EndedBatches(limits.remember_ns, limits.remembered_max)

    @property
    def num_held(self) -> int:
        """Batches that wait or run."""
        return len(self._waiting) + (self._running is not None)

    def refs(self, now_ns: int) -> list[BatchRef]:
        """Every batch held, each with the time until it ends, those before it included."""
        refs: list[BatchRef] = []
        until_ns = 0
        for batch in self._held():
            left_ns = self._expected_ns(batch)
            if batch is self._running:
                left_ns = max(left_ns - (now_ns - batch.run_at_ns), 0)
            until_ns += left_ns
            refs.append(
                BatchRef(
                    batch_id=batch.start.batch_id,
                    fence=batch.start.fence,
                    leadership=batch.start.leadership,
                    remaining_ns=until_ns,
                    jobs=batch.refs(),
                )
            )
        return refs

    # Events.

    def on_batch_start(self, start: BatchStart, now_ns: int) -> list[Effect]:
        """A batch to run. One that is known already changes nothing; the end of one that has ended
        is sent again.
        """
        self._ended.forget(now_ns)
        if start.batch_id in self._ended:
            return [SendDone(self._ended.done(start.batch_id))]
        if any(batch.start.batch_id == start.batch_id for batch in self._held()):
            return []
        if not self._accepts(start):
            self.on_fence(start.leadership, start.fence)
            return self._refuse(start, now_ns)
        self.fences[start.leadership] = start.fence
        jobs = {ref.job_id: ref.frontend_id for ref in start.jobs}
        start_in_ns = min(max(start.start_in_ns, 0), self._limits.start_in_max_ns)
        pull_until_ns = now_ns + start_in_ns + self._limits.pull_wait_ns
        batch = Batch(start, jobs, now_ns, pull_until_ns)
        self._waiting[start.batch_id] = batch
        pulls = [self._pull(batch, frontend_id, now_ns) for frontend_id in batch.awaited]
        return [*pulls, *self._advance(now_ns)]

    def on_inputs(
        self, batch_id: BatchId, frontend_id: FrontendId, inputs: list[Pulled] | None, now_ns: int
    ) -> list[Effect]:
        """A frontend's answer to a pull; None when it did not answer. What is still missing of a
        partial answer is asked for again.
        """
        batch = self._waiting.get(batch_id)
        if batch is None or frontend_id not in batch.awaited:
            return []  # it started without them
        has_brought = batch.take(frontend_id, inputs or ())
        if has_brought and batch.awaited[frontend_id]:
            return [self._pull(batch, frontend_id, now_ns)]
        batch.give_up(frontend_id, "the frontend did not send the input")
        return self._advance(now_ns)

    def on_ran(self, batch_id: BatchId, ran: Ran, now_ns: int) -> list[Effect]:
        """The device is free again."""
        batch = self._running
        assert batch is not None and batch.start.batch_id == batch_id, "one batch runs at a time"
        self._running = None
        size = 0  # a failed run's time says nothing about a batch of its size
        if ran.values is None:
            batch.fail(batch.run_order, "model_error", ran.error)
        else:
            size = len(batch.run_order)
            for job_id, values in zip(batch.run_order, ran.values, strict=True):
                if values:
                    batch.results.append(JobResult(job_id=job_id, values=values))
                else:
                    batch.fail([job_id], "model_error", NOT_FINITE)
        wait_ns = max(ran.started_at_ns - batch.arrived_at_ns, 0)
        effects = self._end(batch, size, ran.run_ns, wait_ns, now_ns)
        return [*effects, *self._advance(now_ns)]

    def on_hold(self, order: OneshotHold, now_ns: int) -> list[Effect]:
        """Which models to hold. An order of an earlier leader is void."""
        if order.fence < self.fence(order.leadership):
            return []
        self.on_fence(order.leadership, order.fence)
        self.models.on_order(order)
        return self._advance(now_ns)

    def on_loaded(
        self, model_id: ModelId, card: OneshotCard | None, why: str, now_ns: int
    ) -> list[Effect]:
        """A model is loaded; without a card it could not be, and why."""
        self.models.on_loaded(model_id, card, why, now_ns)
        return self._advance(now_ns)

    def on_unloaded(self, model_id: ModelId, now_ns: int) -> list[Effect]:
        """A model's memory is free."""
        self.models.on_unloaded(model_id)
        return self._advance(now_ns)

    def fence(self, leadership: str) -> int:
        """Highest fencing token seen in this leadership."""
        return self.fences.get(leadership, 0)

    def on_fence(self, leadership: str, fence: int) -> None:
        """A leader has begun: what an older one still sends is refused."""
        self.fences[leadership] = max(self.fence(leadership), fence)

    def on_wake(self, now_ns: int) -> list[Effect]:
        """The alarm: inputs may be overdue."""
        return self._advance(now_ns)

    def drain(self) -> None:
        """Refuse new batches from now on; those held are run."""
        self._is_draining = True

    # Decisions.

    def _accepts(self, start: BatchStart) -> bool:
        card = self.models.card(start.model_id)
        batch_ns = self.models.batch_ns(start.model_id, start.variant)
        return (
            start.fence >= self.fence(start.leadership)
            and not self._is_draining
            and card is not None
            and start.fingerprint == card.fingerprint
            and 0 < len(start.jobs) <= len(batch_ns)
            and self.num_held < self._limits.batches_max
        )

    def _advance(self, now_ns: int) -> list[Effect]:
        """Start what can start, and change models that nothing keeps any more."""
        effects = self._start_next(now_ns)
        if not self._is_draining:
            effects += self.models.changes({b.start.model_id for b in self._held()}, now_ns)
        return effects

    def _start_next(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._running is None and self._waiting:
            batch = next(iter(self._waiting.values()))
            if batch.awaited and now_ns < batch.pull_until_ns:
                return [*effects, WakeAt(batch.pull_until_ns)]
            del self._waiting[batch.start.batch_id]
            effects += self._begin(batch, now_ns)
        return effects

    def _begin(self, batch: Batch, now_ns: int) -> list[Effect]:
        for frontend_id in list(batch.awaited):
            batch.give_up(frontend_id, "the input did not reach the worker in time")
        if not batch.values:
            return self._end(batch, 0, 0, now_ns - batch.arrived_at_ns, now_ns)
        batch.run_order = [job_id for job_id in batch.jobs if job_id in batch.values]
        batch.run_at_ns = now_ns
        values = tuple(batch.values[job_id] for job_id in batch.run_order)
        batch.values = {}  # the device holds them now
        self._running = batch
        start, limits = batch.start, self._limits
        limit_ns = max(limits.run_min_ns, limits.run_factor * self._expected_ns(batch))
        return [RunBatch(start.batch_id, start.model_id, start.variant, values, limit_ns)]

    def _end(self, batch: Batch, size: int, run_ns: int, wait_ns: int, now_ns: int) -> list[Effect]:
        done = self._done(batch.start, size=size, run_ns=run_ns, wait_ns=wait_ns, is_refused=False)
        self._ended.add(batch.start.batch_id, done, now_ns)
        return [*batch.messages(self._limits.results_bytes_max), SendDone(done)]

    def _refuse(self, start: BatchStart, now_ns: int) -> list[Effect]:
        done = self._done(start, size=0, run_ns=0, wait_ns=0, is_refused=True)
        self._ended.add(start.batch_id, done, now_ns)
        return [SendDone(done)]

    # Bookkeeping.

    def _held(self) -> list[Batch]:
        running = [self._running] if self._running is not None else []
        return [*running, *self._waiting.values()]

    def _expected_ns(self, batch: Batch) -> int:
        batch_ns = self.models.batch_ns(batch.start.model_id, batch.start.variant)
        return batch_ns[(len(batch.run_order) or len(batch.jobs)) - 1]

    def _pull(self, batch: Batch, frontend_id: FrontendId, now_ns: int) -> PullInputs:
        start = batch.start
        return PullInputs(
            start.batch_id,
            start.model_id,
            start.variant,
            frontend_id,
            tuple(batch.awaited[frontend_id]),
            max(batch.pull_until_ns - now_ns, self._limits.pull_wait_ns),
        )

    def _done(
        self, start: BatchStart, *, size: int, run_ns: int, wait_ns: int, is_refused: bool
    ) -> BatchDone:
        return BatchDone(
            worker_id=self._worker_id,
            batch_id=start.batch_id,
            leadership=start.leadership,
            fence=self.fence(start.leadership),  # shows an older leader that there is a newer one
            model_id=start.model_id,
            variant=start.variant,
            size=size,
            run_ns=run_ns,
            wait_ns=wait_ns,
            is_refused=is_refused,
        )
