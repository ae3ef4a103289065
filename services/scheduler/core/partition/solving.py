"""One partition for the scheduler: how many sub-clusters, and which models in each.

Pure and bounded, but up to a second of work for the most models: the shell runs it in a thread.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

from services.scheduler.core.partition import search
from services.scheduler.core.partition.errors import NoPartition
from services.scheduler.core.partition.problem import (
    UNPLACED,
    Assignment,
    Moving,
    PartitionModel,
    Problem,
)

# Loads are what matters; even memory only leaves room for models to come.
_MEMORY_WEIGHT = 0.1
_MORE_SUBCLUSTERS_MAX = 8  # than the memory needs at least
_KEPT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvePartition:
    """Find a partition: `solve`, answered by `Subclusters.on_partition`.

    Attributes:
        models: their rates are loads, in workers.
        current: sub-cluster of each, `UNPLACED` for those that are new.
        num_subclusters: now; 0 at first.
        num_subclusters_max: workers that there are.
        memory_max: bytes of the smallest worker.
        move_costs: workers that change when a model leaves, or enters, its sub-cluster.
        cost_max: bound on their sum.
        uneven_max, even_min: placed models stay unless the largest load is off the average by more
            than the first, as a share of it, and the second can be won.
        idle_max: models with less load come last, and leave where memory lacks.
    """

    models: tuple[PartitionModel, ...]
    keys: tuple[Hashable, ...]
    current: tuple[int, ...]
    num_subclusters: int
    num_subclusters_max: int
    memory_max: float
    move_costs: tuple[float, ...]
    cost_max: float
    uneven_max: float
    even_min: float
    idle_max: float = 0.0


@dataclass(frozen=True, slots=True)
class Solved:
    """Sub-cluster of each model; models that no worker has memory for are not in it.

    Attributes:
        left: idle models that were placed, and have to make room.
    """

    assignment: dict[Hashable, int]
    num_subclusters: int
    left: frozenset[Hashable] = frozenset()


def solve(request: SolvePartition) -> Solved:
    """The first number of sub-clusters for which a partition is found, from the least possible one.

    Fewer sub-clusters are larger ones, which even out chance better. While there is none with all
    models, a tenth of them is left out, new ones with the least load for their size first.
    """
    chosen = _fitting(request)
    while chosen:
        solved = _solve_these(request, chosen)
        if solved is not None:
            return solved
        chosen = chosen[: min(len(chosen) - 1, int(_KEPT * len(chosen)))]
    return Solved({}, request.num_subclusters)


def _solve_these(request: SolvePartition, chosen: list[int]) -> Solved | None:
    models = [request.models[i] for i in chosen]
    current = [request.current[i] for i in chosen]
    costs = [0.0 if request.current[i] == UNPLACED else request.move_costs[i] for i in chosen]
    moving = Moving(current, costs, request.cost_max)
    first = max(request.num_subclusters, _least(models, request.memory_max), 1)
    last = min(first + _MORE_SUBCLUSTERS_MAX, request.num_subclusters_max)
    for num in range(first, last + 1):
        try:
            problem = Problem(models, num, math.inf, request.memory_max, _MEMORY_WEIGHT, moving)
        except NoPartition:
            continue
        found = _found(request, problem, is_new=UNPLACED in current)
        if problem.is_feasible(found):
            keys = [request.keys[i] for i in chosen]
            left = set(_idle(request)) - set(chosen)
            return Solved(
                dict(zip(keys, found.tolist(), strict=True)),
                num,
                frozenset(request.keys[i] for i in left if request.current[i] != UNPLACED),
            )
    return None


def _found(request: SolvePartition, problem: Problem, *, is_new: bool) -> Assignment:
    """What is current, where that will do."""
    start = search.start(problem)
    loads = problem.deviations(problem.totals(start))[:, 0]
    is_settled = problem.is_feasible(start) and not is_new
    if is_settled and abs(loads).max() <= request.uneven_max:
        return start
    better = search.improve(problem, start)
    return start if is_settled and _gain(problem, start, better) < request.even_min else better


def _gain(problem: Problem, before: Assignment, after: Assignment) -> float:
    totals = problem.totals
    return problem.objective(totals(before)) - problem.objective(totals(after))


def _least(models: list[PartitionModel], memory_max: float) -> int:
    """As many sub-clusters as the models' bytes need at least."""
    room = memory_max - max((model.dynamic_bytes for model in models), default=0)
    total = sum(model.static_bytes for model in models)
    return math.ceil(total / room) if room > 0 else 1


def _idle(request: SolvePartition) -> list[int]:
    return [i for i, model in enumerate(request.models) if model.rate_rps < request.idle_max]


def _fitting(request: SolvePartition) -> list[int]:
    """Models that may be placed: idle ones last, placed ones first, then those busiest for their
    size. Of those that fit a worker as many as all workers' memory takes.
    """
    idle = set(_idle(request))
    room = [
        request.memory_max - model.dynamic_bytes - model.static_bytes for model in request.models
    ]
    order = sorted(
        (i for i, left in enumerate(room) if left >= 0),
        key=lambda i: (
            i in idle,
            request.current[i] == UNPLACED,
            -request.models[i].rate_rps / max(request.models[i].static_bytes, 1),
        ),
    )
    peak = max((request.models[i].dynamic_bytes for i in order), default=0)
    left = (request.memory_max - peak) * request.num_subclusters_max
    chosen = []
    for i in order:
        left -= request.models[i].static_bytes
        if left < 0:
            break
        chosen.append(i)
    return chosen
