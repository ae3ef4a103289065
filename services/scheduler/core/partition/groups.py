"""Sub-clusters and how many workers each should have."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

# Of a load in workers: with less than this a sub-cluster's spread is not smaller.
_LOAD_MIN = 0.1


@dataclass(frozen=True, slots=True)
class Groups:
    """Sub-clusters: of each model and of each worker that holds any."""

    subcluster_of_model: dict[Hashable, int]
    subcluster_of_worker: dict[int, int]
    num_subclusters: int


def spare(num_workers: int, load: float) -> float:
    """Workers beyond the load, in standard deviations of a Poisson load; -inf with none.

    Equal for all sub-clusters, it makes small ones proportionally larger, as chance takes more of
    them (square-root staffing).
    """
    if num_workers == 0:
        return -math.inf
    return (num_workers - load) / math.sqrt(max(load, _LOAD_MIN))


def worker_move(
    num_workers: Sequence[int],
    loads: Sequence[float],
    can_give: Collection[int],
    gain_min: float,
) -> tuple[int, int] | None:
    """From which sub-cluster to which one worker should move: from the one that afterwards has most
    to spare to the one that has least; None where that gains less than `gain_min`.

    Args:
        num_workers, loads: of each sub-cluster.
        can_give: sub-clusters that may lose a worker.
    """
    if not can_give:
        return None
    taker = min(range(len(loads)), key=lambda j: spare(num_workers[j], loads[j]))
    donor = max(can_give, key=lambda j: spare(num_workers[j] - 1, loads[j]))
    before = spare(num_workers[taker], loads[taker])
    after = min(
        spare(num_workers[taker] + 1, loads[taker]), spare(num_workers[donor] - 1, loads[donor])
    )
    return (donor, taker) if donor != taker and after > before + gain_min else None


def find_groups(holds: Mapping[int, frozenset[Hashable]]) -> Groups:
    """Sub-clusters from what workers hold, as a scheduler that takes over finds them.

    Sets that many workers hold are sub-clusters, unless most of one is in an earlier one: such a
    worker is being changed. Every held model and every worker that holds any is in exactly one.
    """
    counts: dict[frozenset[Hashable], int] = {}
    for models in holds.values():
        if models:
            counts[models] = counts.get(models, 0) + 1
    of_model: dict[Hashable, int] = {}
    num = 0
    for models in sorted(
        counts, key=lambda held: (-counts[held], -len(held), sorted(map(str, held)))
    ):
        new = [model for model in models if model not in of_model]
        if 2 * len(new) > len(models):
            of_model |= dict.fromkeys(new, num)
            num += 1
    of_worker: dict[int, int] = {}
    for worker, models in holds.items():
        shares = [0] * num
        for model in models:
            if model in of_model:
                shares[of_model[model]] += 1
        if models:
            of_worker[worker] = max(range(num), key=lambda j: shares[j])
    for worker, models in holds.items():
        for model in models:
            of_model.setdefault(model, of_worker[worker])
    return Groups(of_model, of_worker, num)
