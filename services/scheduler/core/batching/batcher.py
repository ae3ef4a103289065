"""Central batching in one process: the interface of batch policies, and the policy that combines
the decisions of a shard and of the rank table.
"""

from collections.abc import Collection, Hashable, Sequence
from typing import Protocol, runtime_checkable

from services.scheduler.core.batching.effects import Effect
from services.scheduler.core.batching.job import Delays, Job, ModelSpec
from services.scheduler.core.batching.rank import RankTable
from services.scheduler.core.batching.rules import MakeRules
from services.scheduler.core.batching.shard import ModelShard


@runtime_checkable
class Batcher(Protocol):
    """Central batching: every event returns the effects to perform, in order.

    GPUs are numbers, models any hashable keys. `wake_at_ns` is the instant at which `on_wake` is
    due; that may be earlier than anything happens.
    """

    wake_at_ns: int

    def add_model(self, spec: ModelSpec) -> None:
        """Add a model, or update its times."""
        ...

    def remove_model(self, key: Hashable) -> Sequence[Effect]:
        """Remove a model; its waiting jobs are dropped."""
        ...

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """Add an idle GPU, or change the models that one serves."""
        ...

    def remove_gpu(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """Remove a GPU. The caller submits its jobs again."""
        ...

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """Queue a job, whose model must be known."""
        ...

    def num_ahead(self, key: Hashable, deadline_ns: int) -> int:
        """How many waiting jobs of a model are due no later than this."""
        ...

    def on_cancel(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """Cancel a job."""
        ...

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU's oldest batch has ended."""
        ...

    def on_wake(self, now_ns: int) -> Sequence[Effect]:
        """The instant `wake_at_ns` has come."""
        ...


class WindowBatcher(ModelShard):
    """Batches jobs by a window and a gathering rule: deferred, eager or timeout batching.

    Args:
        make_rules: window and gathering for a model.
        delays: from a dispatch to the GPU's start.
    """

    def __init__(self, make_rules: MakeRules, delays: Delays) -> None:
        self.rank = RankTable()
        super().__init__(self.rank, make_rules, delays)

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """Add an idle GPU, or change the models that one serves."""
        self.rank.add_gpu(gpu, models, now_ns)
        self._count_gpus()
        return self.on_gpus(now_ns)

    def remove_gpu(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """Remove a GPU. The caller submits its jobs again."""
        self.rank.remove_gpu(gpu)
        self._count_gpus()
        return self.on_gpus(now_ns)

    def _count_gpus(self) -> None:
        for key in self._queues:
            self.set_num_gpus(key, self.rank.num_gpus_of(key))
