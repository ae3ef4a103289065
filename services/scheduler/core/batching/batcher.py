"""Central batching in one process: the shard's decisions and the rank table's, put together."""

from collections.abc import Collection, Hashable, Sequence

from services.scheduler.core.batching.effects import Effect
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rank import RankTable
from services.scheduler.core.batching.rules import MakeRules
from services.scheduler.core.batching.shard import ModelShard


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
        """A GPU has come, free, or serves other models than before."""
        self.rank.add_gpu(gpu, models, now_ns)
        self._count_gpus()
        return self.on_gpus(now_ns)

    def remove_gpu(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU has gone. What it ran is the shell's to submit again."""
        self.rank.remove_gpu(gpu)
        self._count_gpus()
        return self.on_gpus(now_ns)

    def _count_gpus(self) -> None:
        for key in self._queues:
            self.set_num_gpus(key, self.rank.num_gpus_of(key))
