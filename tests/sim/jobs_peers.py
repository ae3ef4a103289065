"""Frontends and workers of one-shot models: production cores, told events by a bad network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from services.frontend.core.turns import job_events as frontend_effects
from services.frontend.core.turns.jobs import Jobs
from services.scheduler.core.jobs import AnswerDropped, JobLimits
from services.worker.oneshot import effects as worker_effects
from services.worker.oneshot.core import BatchCore
from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, HostId, JobId, ModelId, WorkerId
from shared.wire.messages import (
    BatchStart,
    InputPull,
    InputReply,
    JobInput,
    JobResults,
    LeaderChanged,
    LeadershipFence,
    OneshotCard,
    OneshotHold,
    OneshotVariant,
    WorkerReport,
)
from tests.sim.heap import MS, World

if TYPE_CHECKING:
    from tests.sim.jobs_world import House

REPORT_EVERY = 500 * MS
MODEL_BYTES = 1000


@dataclass(frozen=True)
class SimModel:
    """``l(b) = alpha b + beta``; batches really take `slower` times as long."""

    name: str
    alpha_ms: float = 1.0
    beta_ms: float = 5.0
    slo_ms: float = 60.0
    size_max: int = 16
    slower: float = 1.0

    def batch_ns(self, size: int) -> int:
        return int((self.alpha_ms * size + self.beta_ms) * MS)

    def card(self) -> OneshotCard:
        batch_ns = [self.batch_ns(size) for size in range(1, self.size_max + 1)]
        return OneshotCard(
            model_id=ModelId(self.name),
            task="embed",
            modality="text",
            source=self.name,
            fingerprint=self.name,
            slo_ms=self.slo_ms,
            variants=[OneshotVariant(variant=0, batch_ns=batch_ns)],
            num_values=1,
            static_bytes=MODEL_BYTES,
        )


@dataclass(frozen=True)
class Setup:
    """Attributes:
    memory_bytes: of a worker for models that are loaded on order; 0: all are loaded.
    load_max_ns: what loading one takes at most; of these that fail, a share of `load_failures`.
    num_shards: scheduler shards beside a rank process; 0 for a scheduler that is not divided.
    jitter: of run times, a share up and down.
    """

    models: Sequence[SimModel] = (SimModel("m"),)
    num_workers: int = 3
    num_frontends: int = 2
    num_shards: int = 0
    policy: str = "steady"
    jitter: float = 0.0
    loss: float = 0.02
    duplication: float = 0.05
    delay_max_ns: int = 2 * MS
    memory_bytes: int = 0
    load_max_ns: int = 300 * MS
    load_failures: float = 0.0
    limits: JobLimits = field(default_factory=JobLimits)


class Alarm:
    """Rings at the earliest instant it was set to since it rang last, or at the latest given."""

    def __init__(self, world: World, ring: Callable[[], None]) -> None:
        self._world = world
        self._ring = ring
        self._num_set = 0

    def set(self, at_ns: int) -> None:
        """Replaces an earlier setting."""
        self._num_set += 1
        if at_ns < 1 << 61:
            delay_ns = max(at_ns - self._world.now_ns, 0)
            self._world.after(delay_ns, partial(self._due, self._num_set))

    def stop(self) -> None:
        self._num_set += 1

    def _due(self, number: int) -> None:
        if number == self._num_set:
            self._ring()


class SimFrontend:
    """Owns requests; each must end once."""

    def __init__(self, house: "House", name: str) -> None:
        self.house = house
        self.frontend_id = FrontendId(name)
        self.jobs = Jobs(self.frontend_id, frontend_effects.JobLimits())
        self.alarm = Alarm(house.world, self._wake)
        self.ends: dict[str, list[str]] = {}

    def request(self, model: SimModel, num_jobs: int, slo_ns: int) -> None:
        now_ns = self.house.world.now_ns
        request_id = f"{self.frontend_id}-{len(self.ends)}"
        self.ends[request_id] = []
        jobs = [
            frontend_effects.NewJob(variant=0, input=JobInput(job_id=JobId(f"{request_id}.{n}")))
            for n in range(num_jobs)
        ]
        new = frontend_effects.NewRequest(
            request_id=request_id,
            model_id=ModelId(model.name),
            fingerprint=model.name,
            shard=self.house.shard_of(model.name),
            jobs=jobs,
            arrived_at_ns=now_ns,
            deadline_at_ns=now_ns + slo_ns,
            fastest_ns=model.batch_ns(1),
        )
        self._perform(self.jobs.on_new(new, now_ns))

    def hang_up(self, request_id: str) -> None:
        if not self.ends[request_id]:
            self.ends[request_id].append("cancelled")
            self._perform(self.jobs.on_cancel(request_id))

    def on_pull(self, pull: InputPull, answer: Callable[[InputReply], None]) -> None:
        for effect in self.jobs.on_pull(pull, self.house.world.now_ns):
            assert isinstance(effect, frontend_effects.AnswerPull)
            answer(effect.message)

    def on_results(self, results: JobResults) -> None:
        self._perform(self.jobs.on_results(results, self.house.world.now_ns))

    def on_leader(self, _: LeaderChanged) -> None:
        self._perform(self.jobs.on_resubmit_all(self.house.world.now_ns))

    def on_dropped(self, dropped: AnswerDropped) -> None:
        self._perform(self.jobs.on_dropped(dropped.dropped))

    def _wake(self) -> None:
        self._perform(self.jobs.on_wake(self.house.world.now_ns))

    def _perform(self, effects: Sequence[frontend_effects.Effect]) -> None:
        for effect in effects:
            match effect:
                case frontend_effects.Submit(shard, message):
                    self.house.to_shard(shard, "on_jobs", message)
                case frontend_effects.Cancel(shard, message):
                    self.house.to_shard(shard, "on_cancel", message)
                case frontend_effects.Done():
                    self._end(effect.request_id, "late" if effect.is_late else "done")
                case frontend_effects.Fail():
                    self._end(effect.request_id, effect.outcome)
                case WakeAt(at_ns):
                    self.alarm.set(at_ns)
                case frontend_effects.AnswerPull():
                    raise AssertionError("nobody pulled")

    def _end(self, request_id: str, outcome: str) -> None:
        self.house.world.note(f"{request_id} {outcome}")
        self.ends[request_id].append(outcome)


class SimWorker:
    """Pulls inputs, runs batches one at a time, reports; can crash and start anew."""

    def __init__(self, house: "House", name: str) -> None:
        self.house = house
        self.worker_id = WorkerId(name)
        self.num_starts = 0
        self.is_up = False
        self.loaded: set[ModelId] = set()  # in memory
        self.start()

    def start(self) -> None:
        self.is_up = True
        self.num_starts += 1
        self.seq = 0
        cards = [model.card() for model in self.house.models.values()]
        memory_bytes = self.house.setup.memory_bytes
        self.loaded = set() if memory_bytes else {card.model_id for card in cards}
        limits = worker_effects.BatchLimits(models_bytes_max=memory_bytes)
        self.core = BatchCore(self.worker_id, cards, limits)
        life = self.num_starts
        self.alarm = Alarm(self.house.world, partial(self.tell, life, "on_wake"))
        self._report_for_ever(life)

    def crash(self) -> None:
        self.is_up = False
        self.alarm.stop()
        self.house.end_runs(self.worker_id)
        self.house.world.note(f"{self.worker_id} crashes")

    def tell(self, life: int, handler: str, *event: Any) -> None:
        """Deliver an event to the process of this life, if it still is there."""
        if self.is_up and life in (self.num_starts, 0):
            self._perform(getattr(self.core, handler)(*event, self.house.world.now_ns))

    def on_batch_start(self, start: BatchStart) -> None:
        if not self.is_up:
            return
        seen, before = self.core.fence(start.leadership), self._held()
        self.tell(0, "on_batch_start", start)
        is_new = start.batch_id in self._held() - before
        assert not (is_new and start.fence < seen), f"{start.batch_id} accepted after fence {seen}"

    def on_hold(self, order: OneshotHold) -> None:
        if not self.is_up:
            return
        seen, before = self.core.fence(order.leadership), self.core.models.cards()
        self.tell(0, "on_hold", order)
        if order.fence < seen:
            assert self.core.models.cards() == before, f"obeys {order.fence} after fence {seen}"

    def _held(self) -> set[BatchId]:
        return {ref.batch_id for ref in self.core.refs(self.house.world.now_ns)}

    def on_leader(self, changed: LeaderChanged) -> None:
        if self.is_up:
            self.core.on_fence(changed.leadership, changed.fence)
            self.report()

    def report(self) -> None:
        self.seq += 1
        core = self.core
        report = WorkerReport(
            worker_id=self.worker_id,
            incarnation=f"{self.worker_id}.{self.num_starts}",
            seq=self.seq,
            host_id=HostId("h"),
            state="ready",
            oneshot=core.models.cards(),
            oneshot_bytes=core.models.bytes_max,
            oneshot_lacks=core.models.lacks(self.house.world.now_ns),
            batches=core.refs(self.house.world.now_ns),
            fences=[
                LeadershipFence(leadership=name, fence=fence) for name, fence in core.fences.items()
            ],
            interval_ns=REPORT_EVERY,
        )
        self.house.to_all_schedulers("on_report", report)

    def _report_for_ever(self, life: int) -> None:
        if self.is_up and life == self.num_starts:
            self.report()
            self.house.world.after(REPORT_EVERY, partial(self._report_for_ever, life))

    def _perform(self, effects: Sequence[worker_effects.Effect]) -> None:
        house = self.house
        for effect in effects:
            match effect:
                case worker_effects.PullInputs():
                    self._pull(effect)
                case worker_effects.RunBatch():
                    self._run(effect)
                case worker_effects.SendResults(frontend_id, _, results):
                    message = JobResults(results=list(results))
                    frontend = house.frontends[frontend_id]
                    house.network.send(partial(frontend.on_results, message))
                case worker_effects.SendDone(done):
                    house.to_all_schedulers("on_batch_done", done)
                case worker_effects.LoadModel(model_id):
                    self._load(model_id)
                case worker_effects.UnloadModel(model_id):
                    self._unload(model_id)
                case WakeAt(at_ns):
                    self.alarm.set(at_ns)

    def _load(self, model_id: ModelId) -> None:
        house, random = self.house, self.house.world.random
        self.loaded.add(model_id)
        house.world.note(f"{self.worker_id} loads {model_id}")
        in_memory = len(self.loaded) * MODEL_BYTES
        assert in_memory <= house.setup.memory_bytes, f"{self.worker_id} holds {self.loaded}"
        is_failing = random.random() < house.setup.load_failures
        card = None if is_failing else house.models[model_id].card()
        loaded = (model_id, card, "broken" if is_failing else "")
        delay_ns = random.randrange(house.setup.load_max_ns)
        house.world.after(delay_ns, partial(self._end_load, self.num_starts, loaded))

    def _end_load(self, life: int, loaded: tuple[ModelId, OneshotCard | None, str]) -> None:
        if life == self.num_starts and self.is_up:
            if loaded[1] is None:
                self.loaded.remove(loaded[0])
            self.tell(life, "on_loaded", *loaded)
            self.report()

    def _unload(self, model_id: ModelId) -> None:
        self.house.world.note(f"{self.worker_id} unloads {model_id}")
        held = [batch.start.model_id for batch in self.core._held()]
        assert model_id not in held, f"{self.worker_id} unloads {model_id} under a batch"
        self.house.world.after(MS, partial(self._end_unload, self.num_starts, model_id))

    def _end_unload(self, life: int, model_id: ModelId) -> None:
        if life == self.num_starts and self.is_up:
            self.loaded.remove(model_id)
            self.tell(life, "on_unloaded", model_id)
            self.report()

    def _pull(self, effect: worker_effects.PullInputs) -> None:
        house, life = self.house, self.num_starts
        frontend = house.frontends[effect.frontend_id]
        is_answered = False

        def answer(reply: InputReply | None) -> None:
            nonlocal is_answered
            if is_answered:
                return
            is_answered = True
            inputs = None
            if reply is not None:
                inputs = [
                    worker_effects.Pulled(job_id=job.job_id, value="v", is_gone=job.gone)
                    for job in reply.inputs
                ]
            self.tell(life, "on_inputs", effect.batch_id, effect.frontend_id, inputs)

        def reply_later(reply: InputReply) -> None:
            house.network.send(partial(answer, reply))

        pull = InputPull(job_ids=list(effect.job_ids))
        house.network.send(partial(frontend.on_pull, pull, reply_later))
        house.world.after(effect.timeout_ns, partial(answer, None))

    def _run(self, effect: worker_effects.RunBatch) -> None:
        house = self.house
        size = len(effect.values)
        model = house.models[effect.model_id]
        assert effect.model_id in self.loaded, f"{self.worker_id} lacks {effect.model_id}"
        jitter = 1 + house.setup.jitter * house.world.random.uniform(-1, 1)
        run_ns = int(model.batch_ns(size) * model.slower * jitter)
        house.world.note(f"{self.worker_id} runs {effect.batch_id}: {size}")
        house.begin_run(self, effect.batch_id)
        ran = worker_effects.Ran(
            started_at_ns=house.world.now_ns, run_ns=run_ns, values=["v"] * size
        )
        house.world.after(run_ns, partial(self._end_run, self.num_starts, effect.batch_id, ran))

    def _end_run(self, life: int, batch_id: BatchId, ran: worker_effects.Ran) -> None:
        is_running = self.house.running(self.worker_id) == batch_id
        if life == self.num_starts and self.is_up and is_running:  # and was not stopped before
            self.house.end_runs(self.worker_id)
            self.tell(life, "on_ran", batch_id, ran)
