"""Appendix A's mixed integer linear program, solved by HiGHS."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.partition.problem import (
    SLACK,
    Assignment,
    Floats,
    Problem,
)

_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True)
class Solution:
    """What HiGHS found.

    Attributes:
        assignment: None if it found none in time, or none exists.
        optimal: proven to be the best.
        infeasible: proven that none exists.
    """

    assignment: Assignment | None
    optimal: bool
    infeasible: bool


def solve(
    problem: Problem, base: Assignment, subclusters: Assignment, time_limit_s: float
) -> Solution:
    """Share the models of some sub-clusters out among these again; the others keep theirs.

    With all sub-clusters this is the program of appendix A as printed: (3) to (9), and (10) where
    there is a current assignment. With fewer it is the same program with the other x_ij fixed.

    Args:
        base: [m], the assignment to start from; the freed models' entries mean nothing.
        subclusters: [k] distinct ones, those to be freed.

    Columns: x_ij, row by row; then Delta R and Delta S in units of the models' mean rate and mean
    bytes; then max_i d_i x_ij of each freed sub-cluster.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    free = np.flatnonzero(np.isin(base, subclusters))
    if not len(free):
        return Solution(None, optimal=False, infeasible=False)
    unit = problem.average * problem.num_subclusters / problem.num_models
    num_x = len(free) * len(subclusters)
    cost = np.concatenate([np.zeros(num_x), problem.weights, np.zeros(len(subclusters))])
    rows, lower, upper = _rows(problem, free, subclusters, base, unit)
    least, most = _bounds(problem, free, subclusters, base, unit)
    result = milp(
        cost,
        integrality=(np.arange(len(cost)) < num_x).astype(np.int64),
        bounds=Bounds(least, most),
        constraints=LinearConstraint(csr_array(rows), lower, upper),
        # The gap that ends the search is the absolute one, 1e-6 of a model.
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        return Solution(None, optimal=False, infeasible=result.status == _INFEASIBLE)
    assignment = base.copy()
    assignment[free] = subclusters[
        result.x[:num_x].reshape(len(free), len(subclusters)).argmax(axis=1)
    ]
    return Solution(assignment, optimal=result.status == _OPTIMAL, infeasible=False)


def _rows(
    problem: Problem, free: Assignment, subclusters: Assignment, base: Assignment, unit: Floats
) -> tuple[Any, Floats, Floats]:
    """Sparse rows, and what they must lie between."""
    from scipy.sparse import block_array, coo_array, eye_array, kron

    num, k = len(free), len(subclusters)
    loads, dynamic = problem.loads[free] / unit, problem.dynamic[free] / unit[1]
    average = problem.loads.sum(axis=0) / problem.num_subclusters / unit
    rate_of, static_of = (kron(loads[None, :, kind], eye_array(k)) for kind in (0, 1))
    unity, ones = eye_array(k), np.ones((k, 1))
    no_deltas, no_peaks = coo_array((k, 2)), coo_array((k, k))
    d_rate = coo_array(np.hstack([ones, 0 * ones]))
    d_static = coo_array(np.hstack([0 * ones, ones]))
    infinite = np.full(k, np.inf)
    blocks = [
        (rate_of, no_deltas, no_peaks, -infinite, problem.rate_max / unit[0]),  # (4)
        (static_of, no_deltas, unity, -infinite, problem.memory_max / unit[1]),  # (5)
        (rate_of, d_rate, no_peaks, average[0], infinite),  # (6), both signs
        (rate_of, -d_rate, no_peaks, -infinite, average[0]),
        (static_of, d_static, no_peaks, average[1], infinite),  # (7), both signs
        (static_of, -d_static, no_peaks, -infinite, average[1]),
        (kron(eye_array(num), np.ones((1, k))), None, None, np.ones(num), np.ones(num)),  # (8)
    ]
    if np.isfinite(problem.memory_max):  # what the maximum in (5) is at least
        heavy = np.flatnonzero(dynamic > 0)
        picks = coo_array((dynamic[heavy], (np.arange(len(heavy)), heavy)), shape=(len(heavy), num))
        tall = kron(np.ones((len(heavy), 1)), eye_array(k))
        blocks.append((-kron(picks, eye_array(k)), None, tall, 0.0, np.full(tall.shape[0], np.inf)))
    if problem.current is not None and np.isfinite(problem.cost_max):  # (10)
        costs = problem.costs[np.ix_(free, subclusters)]
        scale = costs.max() or 1.0
        elsewhere = problem.cost(base) - problem.costs[free, base[free]].sum()
        left = (problem.cost_max * SLACK - elsewhere) / scale
        blocks.append((coo_array(costs.reshape(1, -1) / scale), None, None, -np.inf, left))
    widths = (num * k, 2, k)
    parts, lower, upper = [], [], []
    for *columns, least, most in blocks:
        height = columns[0].shape[0]
        if height == 0:
            continue
        parts.append(
            [
                coo_array((height, width)) if block is None else block
                for block, width in zip(columns, widths, strict=True)
            ]
        )
        lower.append(np.broadcast_to(least, height))
        upper.append(np.broadcast_to(most, height))
    return block_array(parts, format="csr"), np.concatenate(lower), np.concatenate(upper)


def _bounds(
    problem: Problem, free: Assignment, subclusters: Assignment, base: Assignment, unit: Floats
) -> tuple[Floats, Floats]:
    """Of the columns: 0 and 1, what the other sub-clusters deviate by, and no more symmetry.

    Without a current assignment the sub-clusters are alike and any numbering will do: the i-th
    largest model goes to one of the first i.
    """
    num, k = len(free), len(subclusters)
    most_x = np.ones((num, k))
    if problem.current is None:
        largest = np.argsort(-problem.loads[free, 0], kind="stable")[:k]
        for rank, i in enumerate(largest):
            most_x[i, rank + 1 :] = 0.0
    fixed = np.delete(problem.totals(base), subclusters, axis=0)
    deltas = np.abs(problem.deviations(fixed)).max(axis=0, initial=0) * problem.average / unit
    least = np.concatenate([np.zeros(num * k), deltas, np.zeros(k)])
    return least, np.concatenate([most_x.ravel(), np.full(2 + k, np.inf)])
