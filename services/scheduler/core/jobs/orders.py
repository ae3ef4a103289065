"""Which one-shot models workers are to hold: what reports, jobs and batches say, as the core of
sub-clusters takes it, and its decisions as orders on the wire.
"""

from collections import Counter

from services.scheduler.core.jobs.effects import SendHold
from services.scheduler.core.jobs.records import Device
from services.scheduler.core.partition.limits import SubclusterLimits
from services.scheduler.core.partition.solving import Solved, SolvePartition
from services.scheduler.core.partition.subclusters import ModelSize, Subclusters
from shared.ids import ModelId
from shared.wire.messages import OneshotCard, OneshotHold, WorkerReport

Models = frozenset[ModelId]
NOTHING: Models = frozenset()


class ModelOrders:
    """Orders to the workers that load one-shot models on order; others are left alone."""

    def __init__(self, limits: SubclusterLimits, started_at_ns: int, leadership: str) -> None:
        self._subclusters = Subclusters(limits, started_at_ns)
        self._leadership = leadership
        self._num_orders = 0
        self._sizes: dict[ModelId, ModelSize] = {}
        self._able: dict[int, Models] = {}  # what each device can load, or has
        self._num_able: Counter[ModelId] = Counter()

    def on_report(self, device: Device, report: WorkerReport) -> None:
        """A report that is not outdated."""
        if not report.oneshot_bytes or report.state != "ready":
            self.on_gone(device)
            return
        for card in device.cards:
            self._put(card)
        able = frozenset(card.model_id for card in device.cards)
        self._set_able(device.number, able)
        lacks = {lack.model_id for lack in report.oneshot_lacks} | (self._sizes.keys() - able)
        self._subclusters.on_report(
            device.number,
            frozenset(card.model_id for card in device.cards if card.is_loaded),
            report.oneshot_bytes,
            frozenset(lacks),
        )

    def on_gone(self, device: Device) -> None:
        """The worker is dead, is leaving, or loads nothing on order."""
        if device.number in self._able:
            self._set_able(device.number, NOTHING)
            del self._able[device.number]
            self._subclusters.on_worker_gone(device.number)

    def on_job(self, model_id: ModelId) -> None:
        """A job has come, even if it cannot run."""
        self._subclusters.loads.on_jobs(model_id, 1)

    def on_ran(self, model_id: ModelId, num_jobs: int, run_ns: int) -> None:
        """A batch ran."""
        if num_jobs > 0:
            self._subclusters.loads.on_ran(model_id, num_jobs, run_ns)

    def on_partition(self, solved: Solved) -> None:
        """The answer to a `SolvePartition`."""
        self._subclusters.on_partition(solved)

    def on_interval(
        self, devices: dict[int, Device], fence: int, now_ns: int
    ) -> list[SendHold | SolvePartition]:
        """Once a second.

        Args:
            devices: by number.
            fence: of this leader.
        """
        for model_id in [m for m in self._sizes if not self._num_able[m]]:
            del self._sizes[model_id], self._num_able[model_id]
            self._subclusters.remove_model(model_id)
        effects: list[SendHold | SolvePartition] = []
        for effect in self._subclusters.on_interval(now_ns):
            if isinstance(effect, SolvePartition):
                effects.append(effect)
                continue
            device = devices.get(effect.worker)
            if device is None:
                continue  # forgotten, and reported nothing for long
            self._num_orders += 1
            order = OneshotHold(
                models=sorted(ModelId(str(model)) for model in effect.models),
                fence=fence,
                seq=self._num_orders,
                leadership=self._leadership,
            )
            effects.append(SendHold(device.worker_id, order))
        return effects

    def _put(self, card: OneshotCard) -> None:
        size, known = _size_of(card), self._sizes.get(card.model_id)
        if known is not None:  # workers may differ in dtype and device: the largest counts
            size = ModelSize(
                static_bytes=max(size.static_bytes, known.static_bytes),
                dynamic_bytes=max(size.dynamic_bytes, known.dynamic_bytes),
                job_ns=known.job_ns,
            )
        if size != known:
            self._sizes[card.model_id] = size
            self._subclusters.put_model(card.model_id, size)

    def _set_able(self, number: int, able: Models) -> None:
        before = self._able.get(number, NOTHING)
        if able != before:
            self._num_able.update(able - before)
            self._num_able.subtract(before - able)
            self._able[number] = able


def _size_of(card: OneshotCard) -> ModelSize:
    """A job takes as long as in the largest batch of the longest inputs, until batches have run."""
    batch_ns = card.variants[-1].batch_ns
    return ModelSize(
        static_bytes=max(card.static_bytes, 0),
        dynamic_bytes=max(card.dynamic_bytes, 0),
        job_ns=max(batch_ns[-1] // len(batch_ns), 1),
    )
