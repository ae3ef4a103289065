"""One-shot models' shell on a worker: batches in, inputs pulled, results and reports out."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial

from services.worker.device.thread import DeviceThread
from services.worker.oneshot import metrics
from services.worker.oneshot.core import BatchCore
from services.worker.oneshot.effects import (
    BatchLimits,
    Effect,
    LoadModel,
    Pulled,
    PullInputs,
    Ran,
    RunBatch,
    SendDone,
    SendResults,
    UnloadModel,
)
from services.worker.oneshot.model import (
    BatchStoppedError,
    DeviceLostError,
    LoadableOneshot,
    OneshotModel,
    pack_values,
)
from shared.bus import Bus
from shared.effects import WakeAt
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import ModelId, WorkerId, request_of_job
from shared.runtime.clock import Clock
from shared.runtime.events import EventQueue
from shared.runtime.tasks import Tasks
from shared.wire.messages import (
    BatchRef,
    BatchStart,
    InputPull,
    JobInput,
    JobResults,
    LeaderChanged,
    LeadershipFence,
    OneshotCard,
    OneshotHold,
    OneshotLack,
)
from shared.wire.subjects import (
    BATCH_DONE,
    BATCH_START,
    INPUT_PULL,
    JOB_RESULTS,
    LEADER_CHANGED,
    ONESHOT_HOLD,
)

log = logging.getLogger(__name__)

EVENTS_MAX = 4096


class OneshotRunner:
    """Drives one `BatchCore` from the event loop; models run in `thread`, where they take turns
    with the steps of generative models: there is one device.

    Args:
        models: by id; those that can be loaded are, once the scheduler orders it.
        on_change: called when a report is due: a scheduler has begun to lead, and the fence is
            raised already, or other models are held.

    Attributes:
        core: which batches are held.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        worker_id: WorkerId,
        models: Mapping[ModelId, OneshotModel | LoadableOneshot],
        limits: BatchLimits,
        thread: DeviceThread,
        on_change: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._worker_id = worker_id
        self._loadable = {
            m: each for m, each in models.items() if isinstance(each, LoadableOneshot)
        }
        self._models = {m: x for m, x in models.items() if not isinstance(x, LoadableOneshot)}
        self._thread = thread
        self._on_change = on_change
        self.core = BatchCore(worker_id, [model.card for model in models.values()], limits)
        self._events: EventQueue[Effect] = EventQueue(
            EVENTS_MAX, clock, self.core.on_wake, metrics.ONESHOT_DROPPED
        )
        self._stop = threading.Event()  # of the running batch
        self._began_at_ns: int | None = None  # the latest batch, once the device's thread has it
        self._tasks = Tasks("performing an effect failed")
        self._went_idle = asyncio.Event()

    @property
    def fences(self) -> list[LeadershipFence]:
        """Highest fencing token seen in each leadership."""
        return [
            LeadershipFence(leadership=name, fence=fence)
            for name, fence in self.core.fences.items()
        ]

    def cards(self) -> list[OneshotCard]:
        """Its models, loaded or not."""
        return self.core.models.cards()

    @property
    def bytes_max(self) -> int:
        """For models that are loaded on order; 0: all are loaded, and stay so."""
        return self.core.models.bytes_max

    def lacks(self) -> list[OneshotLack]:
        """Models that it was to load and could not."""
        return self.core.models.lacks(self._clock.now_ns())

    def refs(self) -> list[BatchRef]:
        """Every batch held here."""
        return self.core.refs(self._clock.now_ns())

    async def listen(self) -> None:
        """Subscribe."""
        me = self._worker_id
        await self._bus.subscribe(BATCH_START, self._on_batch_start, me)
        await self._bus.subscribe(ONESHOT_HOLD, self._on_hold, me)
        await self._bus.subscribe(LEADER_CHANGED, self._on_leader_changed)

    async def run(self) -> None:
        """Pass events to the core and perform its effects, for ever."""
        while True:
            for effect in await self._events.next_effects():
                await self._perform(effect)
            if not self.core.num_held:
                self._went_idle.set()

    async def drain(self) -> None:
        """Refuse new batches; wait until those held have ended and their results are out."""
        self.core.drain()
        while self.core.num_held:
            self._went_idle.clear()
            await self._went_idle.wait()

    def close(self) -> None:
        """Stop the running batch and wait for nothing."""
        self._events.stop()
        self._stop.set()
        self._tasks.cancel()

    # Events.

    def _on_batch_start(self, start: BatchStart) -> None:
        self._events.put(partial(self.core.on_batch_start, start))

    def _on_hold(self, order: OneshotHold) -> None:
        self._events.put(partial(self.core.on_hold, order))

    def _on_leader_changed(self, leader: LeaderChanged) -> None:
        def event(_: int) -> list[Effect]:
            self.core.on_fence(leader.leadership, leader.fence)
            self._on_change()
            return []

        self._events.put(event)

    # Effects.

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case PullInputs():
                self._tasks.spawn(self._pull(effect))
            case RunBatch():
                self._tasks.spawn(self._run(effect))
            case SendResults():
                _log_results(effect)
                await self._send_results(effect)
            case SendDone():
                await self._send_done(effect)
            case LoadModel(model_id):
                self._tasks.spawn(self._load(model_id))
            case UnloadModel(model_id):
                self._tasks.spawn(self._unload(model_id))
            case WakeAt():
                self._events.set_alarm(effect.at_ns)

    async def _load(self, model_id: ModelId) -> None:
        card, why = None, ""
        try:
            model = await self._thread.run_beside(self._loadable[model_id].load)
        except DeviceLostError:
            raise
        except Exception as error:  # whatever a model's files raise is the end of this load only
            why = f"{type(error).__name__}: {error}"
            log.error("one-shot model not loaded", extra={"model": model_id, "error": why})
        else:
            self._models[model_id], card = model, model.card
            log.info("one-shot model loaded", extra={"model": model_id})
        await self._changed(partial(self.core.on_loaded, model_id, card, why))

    async def _unload(self, model_id: ModelId) -> None:
        await self._thread.run_beside(self._models.pop(model_id).close)
        log.info("one-shot model unloaded", extra={"model": model_id})
        await self._changed(partial(self.core.on_unloaded, model_id))

    async def _changed(self, event: Callable[[int], list[Effect]]) -> None:
        """Pass an event to the core after which the scheduler is to hear of other models."""

        def report_after(now_ns: int) -> list[Effect]:
            effects = event(now_ns)
            self._on_change()
            return effects

        await self._events.put_surely(report_after)

    async def _pull(self, effect: PullInputs) -> None:
        request = InputPull(job_ids=list(effect.job_ids))
        inputs: list[Pulled] | None
        try:
            reply = await self._bus.request(
                INPUT_PULL, request, effect.frontend_id, timeout_s=effect.timeout_ns / 1e9
            )
            inputs = [self._decode(effect, job) for job in reply.inputs]
        except (SymphonyError, ValueError) as error:  # ValueError: no id of a frontend
            log.warning("no inputs", extra={"frontend": effect.frontend_id, "error": str(error)})
            inputs = None
        await self._events.put_surely(
            partial(self.core.on_inputs, effect.batch_id, effect.frontend_id, inputs)
        )

    def _decode(self, effect: PullInputs, job: JobInput) -> Pulled:
        model = self._models.get(effect.model_id)
        if job.gone or model is None:  # its batch began without it, and ended
            return Pulled(job_id=job.job_id, is_gone=True)
        try:
            value = model.decode(job, effect.variant)
        except InvalidRequest as error:
            return Pulled(job_id=job.job_id, error=error.message)
        return Pulled(job_id=job.job_id, value=value)

    async def _run(self, effect: RunBatch) -> None:
        ran = await self._computed(effect)
        metrics.count_batch(effect.model_id, len(effect.values), ran)
        await self._events.put_surely(partial(self.core.on_ran, effect.batch_id, ran))

    async def _computed(self, effect: RunBatch) -> Ran:
        """Raises:
        DeviceLostError: the batch does not end, which ends the process.
        """
        self._began_at_ns = None
        work = asyncio.ensure_future(self._thread.run(partial(self._compute, effect)))
        try:
            while not work.done():
                began_at_ns, now_ns = self._began_at_ns, self._clock.now_ns()
                left_ns = effect.limit_ns
                if began_at_ns is not None:  # before, steps run that have a limit of their own
                    left_ns -= now_ns - began_at_ns
                if left_ns <= 0:
                    run_s, size = effect.limit_ns / 1e9, len(effect.values)
                    raise DeviceLostError(f"a batch of {size} has run for {run_s:.0f} s")
                await asyncio.wait([work], timeout=left_ns / 1e9)
            return work.result()
        finally:
            work.cancel()

    def _compute(self, effect: RunBatch) -> Ran:
        """On the device's thread."""
        model = self._models[effect.model_id]
        started_ns = self._began_at_ns = self._clock.now_ns()
        values: list[str] | None = None
        error_text = ""
        run_ns = 0
        try:
            result = model.run(effect.values, effect.variant, self._stop)
            run_ns = self._clock.now_ns() - started_ns
            values = pack_values(result)
        except DeviceLostError:
            raise
        except BatchStoppedError:
            error_text = "stopped"
        except Exception as error:  # whatever a model's code raises is the end of this batch only
            log.exception("a batch failed", extra={"model": effect.model_id})
            error_text = f"{type(error).__name__}: {error}"
        run_ns = max(run_ns or self._clock.now_ns() - started_ns, 1)
        return Ran(started_at_ns=started_ns, run_ns=run_ns, values=values, error=error_text)

    async def _send_results(self, effect: SendResults) -> None:
        message = JobResults(results=list(effect.results))
        try:
            await self._bus.publish(JOB_RESULTS, message, effect.frontend_id)
        except (SymphonyError, ValueError) as error:  # the frontend submits again, or is gone
            log.warning(
                "results not sent", extra={"frontend": effect.frontend_id, "error": str(error)}
            )

    async def _send_done(self, effect: SendDone) -> None:
        done = effect.done
        metrics.count_done(done)
        if done.is_refused:
            log.info("batch refused", extra={"model": done.model_id, "batch": done.batch_id})
        try:
            await self._bus.publish(BATCH_DONE, done)
        except SymphonyError as error:  # the next report says that the batch is gone
            log.warning("end of a batch not sent", extra={"error": error.message})


def _log_results(effect: SendResults) -> None:
    requests = {request_of_job(result.job_id) for result in effect.results}
    fields = {"batch_id": effect.batch_id, "num_jobs": len(effect.results)}
    log.info("jobs ended", extra={**fields, "request_ids": sorted(requests)})
