"""The baseline of appendix A.2: draw, check, evaluate, repeat."""

import math
from collections.abc import Sequence

import numpy as np

from services.scheduler.core.partition.errors import NoPartition
from services.scheduler.core.partition.problem import (
    Assignment,
    Moving,
    Partition,
    PartitionModel,
    Problem,
)


def random_partition(
    models: Sequence[PartitionModel],
    num_subclusters: int,
    rate_max: float,
    memory_max: float,
    *,
    rng: np.random.Generator,
    num_tries: int,
    memory_weight: float = 1.0,
    current: Sequence[int] | None = None,
    move_costs: Sequence[float] | None = None,
    cost_max: float = math.inf,
) -> Partition:
    """The best of `num_tries` uniformly drawn assignments that keep all bounds.

    Args:
        rng: seeded by the caller.
        others: as for `partition`.

    Raises:
        NoPartition: none of those drawn keeps them.

    Source: deferred batch scheduling, appendix A.2.
    """
    moving = Moving(current, move_costs, cost_max)
    problem = Problem(models, num_subclusters, rate_max, memory_max, memory_weight, moving)
    best: Assignment | None = None
    least = math.inf
    for _ in range(num_tries):
        drawn = rng.integers(num_subclusters, size=len(models))
        objective = problem.objective(problem.totals(drawn))
        if objective < least and problem.is_feasible(drawn):
            best, least = drawn, objective
    if best is None:
        raise NoPartition(f"none of {num_tries} random assignments keeps the bounds", proven=False)
    return problem.partition(best, "random")
