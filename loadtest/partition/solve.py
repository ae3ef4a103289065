"""The best partition found within a time limit.

What is done, keeping the best feasible assignment seen:

1. Greedy: largest model first to the least loaded sub-cluster (with a current assignment: only
   models loaded nowhere), then moves and swaps between two sub-clusters. Milliseconds.
2. HiGHS on the mixed integer linear program of appendix A, restricted: all x_ij are fixed but
   those of two sub-clusters, one that deviates most and one that deviates the other way. A
   fixed number of rounds, an equal share of the time each; moves and swaps after each.
3. HiGHS on the whole program, where that is small (500 x_ij). HiGHS takes no start from
   outside, and in 10 s leaves 800 models x 20 a hundred times less even than step 1 does. Where
   step 1 found nothing feasible, step 3 gets all the time, whatever the size.

So large problems are never solved as a whole, and nothing bounds how far the answer is from the
best one, except that its objective is at least 0.
"""

import math
from collections.abc import Sequence

import numpy as np

from loadtest.partition import milp
from services.scheduler.core.partition import search
from services.scheduler.core.partition.errors import NoPartition
from services.scheduler.core.partition.problem import (
    Assignment,
    Moving,
    Partition,
    PartitionModel,
    Problem,
)

# Up to so many x_ij HiGHS is also given the whole program: it often proves the optimum of fewer
# than a hundred, and beyond some hundreds finds nothing that the programs over pairs do not beat.
_WHOLE_BINARIES_MAX = 500

# Shares of the time limit; the rest is for building programs and for moves and swaps.
_WHOLE_SHARE = 0.5
_TOTAL_SHARE = 0.85

# A program over a pair of 80 models takes about a second, one over 20 some hundredths.
_PAIR_MODELS_TIMES_ROUNDS = 800
_ROUNDS_MIN, _ROUNDS_MAX = 8, 40

# An answer this even needs no more time.
_EVEN = 1e-6


def partition(
    models: Sequence[PartitionModel],
    num_subclusters: int,
    rate_max: float,
    memory_max: float,
    *,
    memory_weight: float = 1.0,
    current: Sequence[int] | None = None,
    move_costs: Sequence[float] | None = None,
    cost_max: float = math.inf,
    time_limit_s: float = 10.0,
) -> Partition:
    """Share models out among sub-clusters so that rates and memory are even.

    Args:
        rate_max: rps that a sub-cluster's dispatcher handles; may be infinite.
        memory_max: bytes of a GPU: static ones of its models, and the largest dynamic one.
        memory_weight: of memory imbalance against rate imbalance (w), both as shares of averages.
        current: sub-cluster of each model now, -1 for one that is loaded nowhere.
        move_costs: of one loading or unloading of each model, >= 0; 1 by default. A move is both.
        cost_max: bound on their sum; means nothing without `current`.
        time_limit_s: for all of it, > 0. Not read from a clock: HiGHS gets most of it as limits of
            its own, which it exceeds by tenths of a second. The call blocks the thread.

    Raises:
        NoPartition: no assignment keeps the bounds, or none was found; names the bound, if known.
        ValueError: arguments that make no sense.

    Source: deferred batch scheduling, appendix A.1, (3)-(10).
    """
    moving = Moving(current, move_costs, cost_max)
    problem = Problem(models, num_subclusters, rate_max, memory_max, memory_weight, moving)
    best = search.improve(problem, search.start(problem))
    if num_subclusters == 1 or not models:
        if not problem.is_feasible(best):
            raise _refusal(problem, is_proven=True)
        return problem.partition(best, "greedy", optimal=True)
    if not problem.is_feasible(best):
        return _find_feasible(problem, best, time_limit_s)
    is_small = len(models) * num_subclusters <= _WHOLE_BINARIES_MAX
    share = _TOTAL_SHARE - (_WHOLE_SHARE if is_small else 0.0)
    found = _even_out_pairs(problem, best, share * time_limit_s)
    is_optimal = False
    if is_small:
        solution = _solve_whole(problem, found, _WHOLE_SHARE * time_limit_s)
        is_optimal = solution.optimal
        found = _better(problem, found, solution)
    # A local search may have reached the optimum that HiGHS has proven.
    return problem.partition(found, "greedy" if found is best else "milp", is_optimal)


def _objective(problem: Problem, assignment: Assignment) -> float:
    return problem.objective(problem.totals(assignment))


def _better(problem: Problem, best: Assignment, solution: milp.Solution) -> Assignment:
    """The best of an assignment, a solution, and what moves and swaps make of the solution."""
    if solution.assignment is not None:
        for found in (solution.assignment, search.improve(problem, solution.assignment)):
            if problem.is_feasible(found) and _objective(problem, found) < _objective(
                problem, best
            ):
                best = found
    return best


def _solve_whole(problem: Problem, base: Assignment, time_limit_s: float) -> milp.Solution:
    return milp.solve(problem, base, np.arange(problem.num_subclusters), time_limit_s)


def _even_out_pairs(problem: Problem, best: Assignment, time_limit_s: float) -> Assignment:
    """Step 2."""
    pair_models = max(1, 2 * problem.num_models // problem.num_subclusters)
    num_rounds = _PAIR_MODELS_TIMES_ROUNDS // pair_models
    num_rounds = min(max(num_rounds, _ROUNDS_MIN), _ROUNDS_MAX)
    tried: set[tuple[int, int]] = set()
    for _ in range(num_rounds):
        pair = _uneven_pair(problem, best, tried)
        if pair is None or _objective(problem, best) < _EVEN:
            break
        solution = milp.solve(problem, best, np.array(pair), time_limit_s / num_rounds)
        found = _better(problem, best, solution)
        if found is best:
            tried.add(pair)
        else:
            best = found
            tried.clear()
    return best


def _uneven_pair(
    problem: Problem, assignment: Assignment, tried: set[tuple[int, int]]
) -> tuple[int, int] | None:
    """A sub-cluster that sets Delta R or Delta S, and the one that deviates most the other way.

    Of these the first not tried since the assignment last changed; None if there is none.
    """
    deviations = problem.deviations(problem.totals(assignment)) * problem.weights
    leads = np.abs(deviations).argmax(axis=0)
    opposites = [np.argsort(deviations @ deviations[lead], kind="stable") for lead in leads]
    for rank in range(problem.num_subclusters):
        for lead, partners in zip(leads, opposites, strict=True):
            p, q = int(min(lead, partners[rank])), int(max(lead, partners[rank]))
            if p != q and (p, q) not in tried:
                return p, q
    return None


def _find_feasible(problem: Problem, start: Assignment, time_limit_s: float) -> Partition:
    """Where the greedy assignment breaks a bound: the whole program, however large."""
    solution = _solve_whole(problem, start, _TOTAL_SHARE * time_limit_s)
    if solution.assignment is not None:
        both = [solution.assignment, search.improve(problem, solution.assignment)]
        feasible = [found for found in both if problem.is_feasible(found)]
        if feasible:
            best = min(feasible, key=lambda found: _objective(problem, found))
            return problem.partition(best, "milp", solution.optimal)
    raise _refusal(problem, is_proven=solution.infeasible)


def _refusal(problem: Problem, is_proven: bool) -> NoPartition:
    """Blames the cost where an assignment exists without its bound."""
    how = "is possible" if is_proven else "was found in time"
    if problem.current is not None and math.isfinite(problem.cost_max):
        unbound = problem.without_cost_bound()
        found = search.improve(unbound, search.start(unbound))
        if unbound.is_feasible(found):
            return NoPartition(
                f"no assignment within rate and memory bounds {how} at a cost of "
                f"{problem.cost_max:g}; one of {problem.cost(found):g} is known",
                "cost_max",
                is_proven,
            )
    return NoPartition(f"no assignment within the bounds {how}", None, is_proven)
