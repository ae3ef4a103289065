"""A good assignment in milliseconds: largest first to the least loaded, then moves and swaps."""

from itertools import combinations

import numpy as np

from services.scheduler.core.partition.problem import (
    SLACK,
    UNPLACED,
    Assignment,
    Floats,
    Problem,
)

# Any overflow outweighs any imbalance.
_OVERFLOW_WEIGHT = 1e6

# Rounds over all pairs of sub-clusters. Some five suffice; the bound is for the clock's sake.
_ROUNDS_MAX = 50


def start(problem: Problem) -> Assignment:
    """Models stay where they are; those loaded nowhere go, largest first, where most room is.

    May break the bounds on rate and memory, never that on cost.
    """
    num = problem.num_subclusters
    if problem.current is None:
        assignment = np.full(problem.num_models, UNPLACED, np.int64)
    else:
        assignment = problem.current.copy()
    placed = np.flatnonzero(assignment != UNPLACED)
    totals = np.zeros((num, 2))
    largest = np.zeros(num)
    np.add.at(totals, assignment[placed], problem.loads[placed])
    np.maximum.at(largest, assignment[placed], problem.dynamic[placed])
    scale = problem.weights / problem.average
    size = (problem.loads * scale).max(axis=1)
    for i in np.argsort(-size, kind="stable"):
        if assignment[i] != UNPLACED:
            continue
        after, peak = totals + problem.loads[i], np.maximum(largest, problem.dynamic[i])
        over = problem.excess(after[:, 0], after[:, 1] + peak)
        # What the squares of the loads grow by, but for a term that is the same everywhere.
        growth = (totals * problem.loads[i] * scale**2).sum(axis=1)
        j = int(np.argmin(_OVERFLOW_WEIGHT * over + growth))
        assignment[i] = j
        totals[j], largest[j] = after[j], peak[j]
    return assignment


def improve(problem: Problem, assignment: Assignment) -> Assignment:
    """Move or swap models between two sub-clusters, best first, while that evens them out.

    Overflows shrink first, then the squared differences. The result costs no more than `cost_max`
    if the given assignment does not.
    """
    search = _Search(problem, assignment)
    pairs = list(combinations(range(problem.num_subclusters), 2))
    for _ in range(_ROUNDS_MAX):
        if not sum([search.exchange(p, q) for p, q in pairs]):
            break
    return search.assignment


class _Search:
    def __init__(self, problem: Problem, assignment: Assignment) -> None:
        self._problem = problem
        self.assignment = assignment.copy()
        self._totals = problem.totals(assignment)
        self._cost = problem.cost(assignment)

    def exchange(self, p: int, q: int) -> bool:
        """Make the best exchange of at most one model each way; False if none helps."""
        problem, scale = self._problem, self._problem.weights / self._problem.average
        mine, theirs = (np.flatnonzero(self.assignment == j) for j in (p, q))
        # The last row and the last column stand for "nothing": a move instead of a swap.
        given = np.vstack([problem.loads[mine], np.zeros((1, 2))])
        taken = np.vstack([problem.loads[theirs], np.zeros((1, 2))])
        transfer = given[:, None] - taken[None]  # [1 + |p|, 1 + |q|, 2]
        half = (self._totals[p] - self._totals[q]) / 2
        score = (((transfer - half) * scale) ** 2).sum(axis=2)
        score += _OVERFLOW_WEIGHT * self._overflow(p, q, mine, theirs, transfer)
        before = score[-1, -1]
        score[self._extra_cost(p, q, mine, theirs) > problem.cost_max * SLACK - self._cost] = np.inf
        i, j = (int(index) for index in np.unravel_index(int(score.argmin()), score.shape))
        if not score[i, j] < before * (1 - 1e-9) - 1e-15:
            return False
        self._cost += self._extra_cost(p, q, mine, theirs)[i, j]
        self.assignment[mine[i : i + 1]] = q
        self.assignment[theirs[j : j + 1]] = p
        self._totals[p] -= transfer[i, j]
        self._totals[q] += transfer[i, j]
        return True

    def _overflow(
        self, p: int, q: int, mine: Assignment, theirs: Assignment, transfer: Floats
    ) -> Floats:
        dynamic = self._problem.dynamic
        given, taken = np.append(dynamic[mine], 0.0), np.append(dynamic[theirs], 0.0)
        after_p = self._totals[p] - transfer
        after_q = self._totals[q] + transfer
        peak_p = np.maximum(_largest_without_each(given)[:, None], taken[None])
        peak_q = np.maximum(_largest_without_each(taken)[None], given[:, None])
        return self._problem.excess(
            after_p[..., 0], after_p[..., 1] + peak_p
        ) + self._problem.excess(after_q[..., 0], after_q[..., 1] + peak_q)

    def _extra_cost(self, p: int, q: int, mine: Assignment, theirs: Assignment) -> Floats:
        costs = self._problem.costs
        given = np.append(costs[mine, q] - costs[mine, p], 0.0)
        taken = np.append(costs[theirs, p] - costs[theirs, q], 0.0)
        return np.asarray(given[:, None] + taken[None])


def _largest_without_each(values: Floats) -> Floats:
    """Entry i: the largest of the others (values >= 0, the last is 0)."""
    if len(values) == 1:
        return np.zeros(1)
    top = int(values.argmax())
    rest = np.full(len(values), values[top])
    rest[top] = np.delete(values, top).max()
    return rest
