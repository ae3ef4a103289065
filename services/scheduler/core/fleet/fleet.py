"""The workers: which are alive, which serve a model, which are silent."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.fleet.kinds import Kinds, Steps
from services.scheduler.core.fleet.records import NO_MODELS, Worker
from services.scheduler.core.fleet.room import Room
from services.scheduler.core.fleet.speeds import (
    DEFAULT_SPEEDS,
    Speeds,
    reported_lora_steps,
    reported_steps,
)
from shared.ids import HostId, ModelId, WorkerId
from shared.wire.messages import ModelSpeeds, WorkerReport, unpack_hashes

MISSED_REPORTS_BEFORE_PROBE = 2
MISSED_REPORTS_BEFORE_DEAD = 3


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """What a report changed.

    Attributes:
        is_new: the worker was unknown or dead: its silence is not watched yet.
        restarted: another process under the same id; what the old one held is lost.
        opened: models that the worker accepts turns for from now on.
        closed: models that it accepts turns for no more.
    """

    worker: Worker
    is_new: bool
    restarted: bool
    opened: frozenset[ModelId]
    closed: frozenset[ModelId]


class Fleet:
    """Every known worker, by id, model and host.

    Attributes:
        left_at_ns: by model, when a worker last ceased to accept turns for it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._workers: dict[WorkerId, Worker] = {}
        self._serving: dict[ModelId, dict[WorkerId, Worker]] = {}
        self._models_known: set[ModelId] = set()
        self._in_order: dict[ModelId, list[Worker]] = {}  # workers of a model, twice
        self._on_host: dict[tuple[ModelId, HostId], dict[WorkerId, Worker]] = {}
        self._typical: dict[ModelId, Speeds] = {}  # the last that were reported
        self._kinds: dict[ModelId, Kinds] = {}
        self.left_at_ns: dict[ModelId, int] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker_id: WorkerId) -> Worker | None:
        return self._workers.get(worker_id)

    @property
    def models(self) -> Collection[ModelId]:
        """Those that any worker accepts turns of now."""
        return [model_id for model_id, workers in self._serving.items() if workers]

    def serving(self, model_id: ModelId) -> Collection[Worker]:
        """Workers that accept turns of this model now."""
        return self._serving.get(model_id, {}).values()

    def slice_of(self, model_id: ModelId, start: int, num: int) -> list[Worker]:
        """Up to `num` of those workers, from index `start` on, cyclically."""
        twice = self._in_order.get(model_id)
        if twice is None:
            twice = self._in_order[model_id] = [*self.serving(model_id)] * 2
        first = start % max(len(twice) // 2, 1)
        return twice[first : first + min(num, len(twice) // 2)]

    def on_host(self, model_id: ModelId, host_id: HostId) -> Collection[Worker]:
        """Workers of one host that accept turns of this model."""
        return self._on_host.get((model_id, host_id), {}).values()

    def only_model(self) -> ModelId | None:
        """The served model, if there is exactly one."""
        return next(iter(self._models_known)) if len(self._models_known) == 1 else None

    def take_report(self, report: WorkerReport, now_ns: int) -> WorkerChange | None:
        """Apply a report; None if it is outdated."""
        worker = self._workers.get(report.worker_id)
        is_new, restarted = worker is None or not worker.alive, False
        if worker is None:
            worker = self._workers[report.worker_id] = Worker(report, now_ns)
        elif report.incarnation != worker.report.incarnation:
            if report.incarnation in worker.retired:
                return None
            worker.retired.append(worker.report.incarnation)
            restarted = True
        elif report.seq <= worker.report.seq:
            return None
        if restarted or report.adapters != worker.report.adapters or is_new:
            worker.adapters = unpack_hashes(report.adapters)
        if report.host_id != worker.report.host_id:
            self._set_models(worker, NO_MODELS, now_ns)  # it is indexed by its old host
        worker.report = report
        self._learn_speeds(worker, report)
        worker.reported_at_ns = now_ns
        worker.alive = True
        worker.is_probed = False
        worker.num_tokens_dispatched = 0
        worker.rooms = {room.model_id: Room.of(room) for room in report.rooms}
        named = frozenset(card.model_id for card in report.models)
        self._models_known |= named
        lora_steps = worker.lora_steps | reported_lora_steps(report.step_models)
        worker.lora_steps = {name: step for name, step in lora_steps.items() if name in named}
        before = worker.models
        after = named if report.state == "ready" else NO_MODELS
        if after != before:
            self._set_models(worker, after, now_ns)
        return WorkerChange(worker, is_new, restarted, after - before, before - after)

    def mark_dead(self, worker: Worker, now_ns: int) -> None:
        """Place nothing there until its next report."""
        worker.alive = False
        self._set_models(worker, NO_MODELS, now_ns)

    def restart_silence(self, now_ns: int) -> None:
        """This process received nothing for a while: count every worker's silence from now on, and
        ignore probes sent before.
        """
        for worker in self._workers.values():
            if worker.alive:
                worker.reported_at_ns = now_ns
                worker.is_probed = False

    def forget(self, worker: Worker) -> None:
        """Drop a dead worker that stayed silent."""
        assert not worker.alive and not worker.num_turns and not worker.reservations
        del self._workers[worker.worker_id]
        for kinds in self._kinds.values():
            kinds.forget(worker.worker_id)

    def probe_at_ns(self, worker: Worker) -> int:
        """When to probe the worker if it stays silent."""
        return worker.reported_at_ns + MISSED_REPORTS_BEFORE_PROBE * worker.report.interval_ns

    def dead_at_ns(self, worker: Worker) -> int:
        """When the worker counts as dead if it stays silent."""
        patience_ns = MISSED_REPORTS_BEFORE_DEAD * worker.report.interval_ns
        return worker.reported_at_ns + max(self._limits.dead_after_ns, patience_ns)

    def _set_models(self, worker: Worker, models: frozenset[ModelId], now_ns: int) -> None:
        host_id = worker.report.host_id
        for model_id in worker.models - models:
            del self._serving[model_id][worker.worker_id]
            self.left_at_ns[model_id] = now_ns
            beside = self._on_host[model_id, host_id]
            del beside[worker.worker_id]
            if not beside:
                del self._on_host[model_id, host_id]
            self._in_order.pop(model_id, None)
        for model_id in models - worker.models:
            self._serving.setdefault(model_id, {})[worker.worker_id] = worker
            self._on_host.setdefault((model_id, host_id), {})[worker.worker_id] = worker
            self._in_order.pop(model_id, None)
        worker.models = models

    def _learn_speeds(self, worker: Worker, report: WorkerReport) -> None:
        """Speeds of the models that it serves; those of other workers if it reports none."""
        if not report.speeds and worker.speeds:
            return
        reported = {speeds.model_id: speeds for speeds in report.speeds}
        speeds: dict[ModelId, Speeds] = {}
        for card in report.models:
            model_id = card.model_id
            typical = self._typical.get(model_id, DEFAULT_SPEEDS)
            if model_id in reported:
                speeds[model_id] = typical.updated_by(reported[model_id], card.block_tokens)
                self._typical[model_id] = speeds[model_id]
            elif model_id in worker.speeds:
                speeds[model_id] = worker.speeds[model_id]
            else:
                unmeasured = ModelSpeeds(model_id=model_id)
                speeds[model_id] = typical.updated_by(unmeasured, card.block_tokens)
            worker.steps[model_id] = self._steps_of(worker, model_id, reported.get(model_id))
        worker.speeds = speeds

    def _steps_of(self, worker: Worker, model_id: ModelId, reported: ModelSpeeds | None) -> Steps:
        """Step times of workers of its kind; the usual ones until it has reported any."""
        kinds = self._kinds.setdefault(model_id, Kinds())
        if reported is not None and (steps := reported_steps(reported)) is not None:
            return kinds.update(worker.worker_id, steps, reported.mean_rows)
        return kinds.of(worker.worker_id)
