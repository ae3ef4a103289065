"""A simulated cluster whose GPUs load and unload models on the order of the scheduler's core."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from loadtest.simulator.log import Batch
from loadtest.simulator.simulation import Simulation
from services.scheduler.core.partition.solving import SolvePartition, solve
from services.scheduler.core.partition.subclusters import HoldModels, ModelSize, Subclusters

TICK_NS = 1_000_000_000


class ChangingModels(Simulation):
    """A `Simulation` in which every GPU begins empty.

    Args:
        subclusters: decides; it knows no model and no worker yet.
        sizes: of the models, in their order.
        load_bytes_per_s: how fast a GPU loads; infinite for at once. It goes on with the models
            that it keeps, and has the new ones when all of them are loaded.
        others: of `Simulation`.

    Attributes:
        changes: (instant, GPU) of every order by which a GPU that held models holds others.
    """

    def __init__(
        self,
        subclusters: Subclusters,
        sizes: Sequence[ModelSize],
        memory_bytes: int,
        load_bytes_per_s: float,
        *others: Any,
        **options: Any,
    ) -> None:
        super().__init__(*others, **options)
        self._subclusters = subclusters
        self._memory_bytes = memory_bytes
        self._load_bytes_per_s = load_bytes_per_s
        names: list[Hashable] = [model.name for model in self.models]
        self._sizes = dict(zip(names, sizes, strict=True))
        self._holds: list[frozenset[Hashable]] = [frozenset() for _ in self.gpus]
        self._wanted = list(self._holds)
        self.changes: list[tuple[int, int]] = []
        for name, size in self._sizes.items():
            subclusters.put_model(name, size)
        num_ticks = self.arrivals.end_ns // TICK_NS
        self._arrived = np.searchsorted(self.arrivals.at_ns, np.arange(num_ticks + 1) * TICK_NS)
        for tick in range(1, num_ticks + 1):
            self.at(tick * TICK_NS, self._tick, tick)

    def models_at_start(self) -> list[Hashable]:
        return []

    def _tick(self, tick: int) -> None:
        """Once a second: reports, what arrived, and the core's decisions."""
        subclusters = self._subclusters
        first, last = self._arrived[tick - 1 : tick + 1]
        counts = np.bincount(self.arrivals.model[first:last], minlength=len(self.models))
        for model, count in zip(self.models, counts.tolist(), strict=True):
            subclusters.loads.on_jobs(model.name, count)
        for gpu, holds in enumerate(self._holds):
            subclusters.on_report(gpu, holds, self._memory_bytes)
        for effect in subclusters.on_interval(self.now_ns):
            match effect:
                case SolvePartition():
                    subclusters.on_partition(solve(effect))
                case HoldModels(worker, models):
                    self._obey(worker, models)

    def _obey(self, gpu: int, models: frozenset[Hashable]) -> None:
        holds = self._holds[gpu]
        if models == self._wanted[gpu]:
            return  # an order that was sent again
        self._wanted[gpu] = models
        if holds:
            self.changes.append((self.now_ns, gpu))
        self._serve(gpu, holds & models)
        num_bytes = sum(self._sizes[model].static_bytes for model in models - holds)
        took_ns = int(num_bytes / self._load_bytes_per_s * 1e9)
        self.at(self.now_ns + took_ns, self._loaded, (gpu, models))

    def _loaded(self, order: tuple[int, frozenset[Hashable]]) -> None:
        gpu, models = order
        if models is self._wanted[gpu]:  # else a later order came
            self._serve(gpu, models)

    def _serve(self, gpu: int, models: frozenset[Hashable]) -> None:
        """What the GPU can be given from now on; batches that it has run on."""
        self._holds[gpu] = models
        self._perform(self.batcher.add_gpu(gpu, models, self.now_ns))

    def _end(self, batch: Batch) -> None:
        super()._end(batch)
        name = self.models[batch.model].name
        self._subclusters.loads.on_ran(name, len(batch.jobs), batch.run_ns)
