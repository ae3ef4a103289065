"""The workers: who is there, who can take turns of which model, who has fallen silent."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from services.scheduler.core.turns.kinds import Kinds, Steps
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.records import NO_MODELS, Worker
from services.scheduler.core.turns.speeds import DEFAULT_SPEEDS, Speeds, steps_told
from shared.ids import HostId, ModelId, WorkerId
from shared.messages import ModelSpeeds, WorkerReport, unpack_hashes

MISSED_REPORTS_BEFORE_PROBE = 2
MISSED_REPORTS_BEFORE_DEAD = 3


@dataclass(frozen=True, slots=True)
class Heard:
    """What a report changed.

    Attributes:
        is_new: not known before, or dead until now: nobody watches its silence yet.
        restarted: another process under the same id; what the old one held is lost.
        opened: models that new turns can now be placed for here, and could not before.
        closed: models that they could be placed for, and cannot any more.
    """

    worker: Worker
    is_new: bool
    restarted: bool
    opened: frozenset[ModelId]
    closed: frozenset[ModelId]


class Fleet:
    """Every worker heard of, by id and by model."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._workers: dict[WorkerId, Worker] = {}
        self._serving: dict[ModelId, dict[WorkerId, Worker]] = {}
        self._models_known: set[ModelId] = set()
        self._in_order: dict[ModelId, list[Worker]] = {}  # those that serve it, twice
        self._on_host: dict[tuple[ModelId, HostId], dict[WorkerId, Worker]] = {}
        self._typical: dict[ModelId, Speeds] = {}  # as somebody told last
        self._kinds: dict[ModelId, Kinds] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker_id: WorkerId) -> Worker | None:
        return self._workers.get(worker_id)

    def serving(self, model_id: ModelId) -> Collection[Worker]:
        """Workers that a turn of this model can be placed on now."""
        return self._serving.get(model_id, {}).values()

    def slice_of(self, model_id: ModelId, start: int, num: int) -> list[Worker]:
        """So many of those workers, or all if they are fewer, from one on, around and around."""
        twice = self._in_order.get(model_id)
        if twice is None:
            twice = self._in_order[model_id] = [*self.serving(model_id)] * 2
        first = start % max(len(twice) // 2, 1)
        return twice[first : first + min(num, len(twice) // 2)]

    def on_host(self, model_id: ModelId, host_id: HostId) -> Collection[Worker]:
        """Those of them on one host."""
        return self._on_host.get((model_id, host_id), {}).values()

    def only_model(self) -> ModelId | None:
        """The model served, when there is just one."""
        return next(iter(self._models_known)) if len(self._models_known) == 1 else None

    def hear(self, report: WorkerReport, now_ns: int) -> Heard | None:
        """Take a report in; None if it is older than what is known."""
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
            self._set_models(worker, NO_MODELS)  # found under its host until now
        worker.report = report
        self._learn_speeds(worker, report)
        worker.heard_at_ns = now_ns
        worker.alive = True
        worker.is_probed = False
        worker.num_tokens_dispatched = 0
        named = frozenset(card.model_id for card in report.models)
        self._models_known |= named
        before = worker.models
        after = named if report.state == "ready" else NO_MODELS
        if after != before:
            self._set_models(worker, after)
        return Heard(worker, is_new, restarted, after - before, before - after)

    def mark_dead(self, worker: Worker) -> None:
        """Nothing is placed there until it is heard of again."""
        worker.alive = False
        self._set_models(worker, NO_MODELS)

    def pardon(self, now_ns: int) -> None:
        """Nobody was listened to for a while: that was not the workers' silence, which begins now,
        and what they were asked meanwhile tells nothing.
        """
        for worker in self._workers.values():
            if worker.alive:
                worker.heard_at_ns = now_ns
                worker.is_probed = False

    def forget(self, worker: Worker) -> None:
        """Drop a dead worker that stayed silent."""
        assert not worker.alive and not worker.num_turns and not worker.reservations
        del self._workers[worker.worker_id]
        for kinds in self._kinds.values():
            kinds.forget(worker.worker_id)

    def probe_at_ns(self, worker: Worker) -> int:
        """When its silence asks for a question."""
        return worker.heard_at_ns + MISSED_REPORTS_BEFORE_PROBE * worker.report.interval_ns

    def dead_at_ns(self, worker: Worker) -> int:
        """When its silence makes it count as dead."""
        patience_ns = MISSED_REPORTS_BEFORE_DEAD * worker.report.interval_ns
        return worker.heard_at_ns + max(self._limits.dead_after_ns, patience_ns)

    def _set_models(self, worker: Worker, models: frozenset[ModelId]) -> None:
        host_id = worker.report.host_id
        for model_id in worker.models - models:
            del self._serving[model_id][worker.worker_id]
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
        """Of the models that it serves; of those that it tells nothing of, what others told."""
        if not report.speeds and worker.speeds:
            return
        told = {speeds.model_id: speeds for speeds in report.speeds}
        speeds: dict[ModelId, Speeds] = {}
        for card in report.models:
            model_id = card.model_id
            likely = self._typical.get(model_id, DEFAULT_SPEEDS)
            if model_id in told:
                speeds[model_id] = likely.told(told[model_id], card.block_tokens)
                self._typical[model_id] = speeds[model_id]
            elif model_id in worker.speeds:
                speeds[model_id] = worker.speeds[model_id]
            else:
                speeds[model_id] = likely.told(ModelSpeeds(model_id=model_id), card.block_tokens)
            worker.steps[model_id] = self._steps_of(worker, model_id, told.get(model_id))
        worker.speeds = speeds

    def _steps_of(self, worker: Worker, model_id: ModelId, told: ModelSpeeds | None) -> Steps:
        """As its kind measures them; as is usual as long as it has told nothing."""
        kinds = self._kinds.setdefault(model_id, Kinds())
        if told is not None and (steps := steps_told(told)) is not None:
            return kinds.tell(worker.worker_id, steps, told.mean_rows)
        return kinds.of(worker.worker_id)
