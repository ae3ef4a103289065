"""What other systems do, to compare with (SYMPHONY, section 4, *Baseline Systems*).

All run on the same workers: what a system has not got is left unused, and nothing is made slower
than it is here. They hear no hints, but for `Scatter`. What a system keeps nowhere but in the pool
is still written below; the writes are beside the steps and cost them little.
"""

from collections.abc import Collection
from typing import ClassVar
from zlib import crc32

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.placement.policy import Demand, PlacementPolicy, burden
from services.scheduler.core.turns.records import Worker
from shared.messages import KvFrom


class Recompute(PlacementPolicy):
    """vLLM: every request is a new one, on the least loaded worker.

    Modelled: the paper gives vLLM its own global controller, which evens out the load, and so does
    this. History comes from the worker's own pool, as vLLM finds it with its prefix cache, or is
    computed. The paper's vLLM computed all of it: for that, add `SYMPHONY_COOPERATIVE=false`. Not
    modelled: swapping of preempted requests.
    """

    kv_from: ClassVar[KvFrom] = "pool"
    hears_hints: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        return min(workers, key=burden), "balance"


class Sticky(PlacementPolicy):
    """InferCept: a session's KV stays in its host's memory, and the session with it.

    Modelled: the first request goes to the worker with the fewest, all others to the same one
    ("subsequent requests in that session are sent to the same node"); KV that left the arena is
    computed again, since InferCept discards what does not fit into memory. Not modelled: which of
    a request's KV it discards, swaps or keeps while a tool runs.
    """

    kv_from: ClassVar[KvFrom] = "arena"
    hears_hints: ClassVar[bool] = False
    leaves_home: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        if home is not None:
            return home, "affinity"
        return min(workers, key=burden), "balance"


class Migrate(Recompute):
    """Llumnix: requests go to the freest worker, and from one that has far more than another they
    move there while they run. Between turns nothing is kept: history is computed.

    Modelled: each time that a worker reports, a running turn leaves it for the least loaded one, if
    that has `Limits.relief_gap` turns less; of its turns the one with the fewest tokens, of the
    lowest priority, as Llumnix picks them. Its KV comes from the worker's host, by the measured
    link, before it goes on. Not modelled: Llumnix copies most of the KV while the request still
    decodes, so that it stands still for less (tens of ms); and it counts pages where this counts
    turns.
    """

    relieves: ClassVar[bool] = True

    def relief_of(self, worker: Worker, workers: Collection[Worker]) -> Worker | None:
        return _relief_of(worker, workers, self._limits.relief_gap)


class MigrateSticky(Sticky):
    """Llumnix with InferCept, which the paper made as its strongest baseline: a session's turns go
    to its home and find their KV in the memory there, and move while they run as Llumnix moves
    them. The worker that a turn moved to is the session's home from then on.
    """

    relieves: ClassVar[bool] = True

    def relief_of(self, worker: Worker, workers: Collection[Worker]) -> Worker | None:
        return _relief_of(worker, workers, self._limits.relief_gap)


class Remote(PlacementPolicy):
    """LMCache: KV is stored for all workers alike, and loaded when the turn is there.

    Modelled: the least loaded worker, wherever the KV is, which comes from any tier on the critical
    path. Not modelled: its lossy compression, with what that saves on the link and costs the device
    (that is an option of a tier, not of placement), and that it does without the host's memory:
    what happens to be near is taken from there.
    """

    hears_hints: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        return min(workers, key=burden), "balance"


class Scatter(PlacementPolicy):
    """Any worker, wherever KV and load are, drawn by session and prompt: the same ones are drawn
    again among the same workers. With hints, so that only the choice differs from ours.
    """

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        drawn = f"{demand.name} {demand.num_prompt_tokens}"
        return max(
            workers, key=lambda w: (crc32(f"{drawn} {w.worker_id}".encode()), w.worker_id)
        ), ("balance")


def _relief_of(worker: Worker, workers: Collection[Worker], gap: int) -> Worker | None:
    least = min(workers, key=burden, default=worker)
    return least if worker.num_turns - least.num_turns >= gap else None
