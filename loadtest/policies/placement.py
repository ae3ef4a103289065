"""How other systems place turns, to compare with (SYMPHONY, section 4, *Baseline Systems*).

All run on the same simulated cluster (`loadtest.cluster`): what a system does not have is left
unused, and nothing is made slower than it is in ours. They ignore hints, but for `Scatter`, and
send a turn to its worker at once, where it may wait. What a
system keeps only in the GPU KV pool is still written below; the writes run beside the steps and
cost them little.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal
from zlib import crc32

from loadtest.policies.consolidate import Consolidate
from loadtest.policies.first_fit import FirstFit
from loadtest.policies.most_idle import MostIdle
from loadtest.policies.rank_aware import RankAware
from services.scheduler.core import POLICIES, PlacementPolicy, PlacementReason
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement.least_cost import LeastCost
from services.scheduler.core.placement.policy import Demand, burden

HistoryFrom = Literal["any", "arena", "pool"]


@dataclass(frozen=True, slots=True)
class System:
    """A policy, and what the simulated cluster does differently for it.

    Attributes:
        make: what its schedulers load, by its path.
        history_from: lowest tier that a turn's history comes from; below it, it is recomputed.
        migrates: running turns leave a worker that has far more than another; see
            `loadtest.cluster.migration`.
    """

    make: type[PlacementPolicy]
    history_from: HistoryFrom = "any"
    migrates: bool = False


class _SentAtOnce(PlacementPolicy):
    """No turn waits in the scheduler."""

    hears_hints: ClassVar[bool] = False

    def has_room(self, worker: Worker, demand: Demand) -> bool:
        return True


class Balanced(_SentAtOnce):
    """The least loaded worker, wherever the session's KV is.

    As vLLM behind the global controller that the paper gives it, Llumnix, and LMCache, which stores
    KV for all workers alike and loads it when the turn has come. Not modelled: swapping of
    preempted requests; LMCache's lossy compression.
    """

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        return min(workers, key=burden), "balance"


class Sticky(_SentAtOnce):
    """InferCept: a session's KV stays in its host's memory, and the session with it.

    The first request goes to the worker with the fewest, all others to the same one ("subsequent
    requests in that session are sent to the same node"). Not modelled: which of a request's KV it
    discards, swaps or keeps while a tool runs.
    """

    leaves_home: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        if home is not None:
            return home, "affinity"
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
        ), "balance"


class Home(LeastCost):
    """Ours without its balance: a session stays where its first turn went."""

    leaves_home: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        if home is not None:
            return home, "affinity"
        return super().choose(workers, home, demand)

    def better_than(
        self, kept: Worker, workers: Collection[Worker], demand: Demand, *, is_sent: bool
    ) -> Worker | None:
        return None


SYSTEMS: dict[str, System] = {
    **{name: System(make) for name, make in POLICIES.items()},
    "recompute": System(Balanced, "pool"),  # vLLM
    "sticky": System(Sticky, "arena"),  # InferCept
    "migrate": System(Balanced, "pool", migrates=True),  # Llumnix
    "migrate-sticky": System(Sticky, "arena", migrates=True),  # Llumnix with InferCept
    "remote": System(Balanced),  # LMCache
    "random": System(Scatter),
    "rank-aware": System(RankAware),  # CaraServe
    "consolidate": System(Consolidate),  # Punica
    "most-idle": System(MostIdle),
    "first-fit": System(FirstFit),
}
