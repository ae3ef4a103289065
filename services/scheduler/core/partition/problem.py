"""The partitioning problem in arrays: what an assignment costs, and whether it may be."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.scheduler.core.partition.errors import NoPartition

Floats = NDArray[np.float64]
Assignment = NDArray[np.int64]

UNPLACED = -1

# Sums of rates and costs are rounded; bytes are exact in a float64 up to 8 PiB.
SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionModel:
    """What a model needs in its sub-cluster.

    Attributes:
        rate_rps: requests per second.
        static_bytes: held on every GPU of the sub-cluster, always: the weights.
        dynamic_bytes: held while it runs; a GPU runs one model at a time.
    """

    model_id: str
    rate_rps: float
    static_bytes: int
    dynamic_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """An assignment that keeps all bounds.

    Attributes:
        assignment: sub-cluster of each model, in the order of the models.
        objective: largest deviation from the average rate of a sub-cluster, as a share of it, plus
            memory weight times the same of static memory.
        rate_imbalance, memory_imbalance: (max - min) / average over sub-clusters.
        cost: of loading and unloading, given the current assignment; 0 without one.
        solver: what found it.
        optimal: no better one exists, as the solver has proven.
    """

    assignment: tuple[int, ...]
    objective: float
    rate_imbalance: float
    memory_imbalance: float
    cost: float
    solver: Literal["milp", "greedy", "random"]
    optimal: bool = False


@dataclass(frozen=True, slots=True)
class Moving:
    """Where models are now, and what moving them costs; see `partition`."""

    current: Sequence[int] | None = None
    move_costs: Sequence[float] | None = None
    cost_max: float = math.inf


STAYING = Moving()


class Problem:
    """Appendix A's data. m models, l sub-clusters.

    Attributes:
        loads: [m, 2] float64: rate in rps, static memory in bytes.
        dynamic: [m] float64, bytes.
        average: [2]: of a sub-cluster; 1 where all are 0.
        weights: [2]: 1 and the memory weight.
        current: [m] int64, or None; `UNPLACED` for a model that is loaded nowhere.
        costs: [m, l]: what it costs to have model i in sub-cluster j.
    """

    def __init__(
        self,
        models: Sequence[PartitionModel],
        num_subclusters: int,
        rate_max: float,
        memory_max: float,
        memory_weight: float = 1.0,
        moving: Moving = STAYING,
    ) -> None:
        if num_subclusters < 1:
            raise ValueError(f"{num_subclusters} sub-clusters hold nothing")
        if memory_weight < 0:
            raise ValueError(f"memory_weight must not be negative: {memory_weight}")
        self.num_models, self.num_subclusters = len(models), num_subclusters
        rates = np.array([model.rate_rps for model in models], np.float64)
        static = np.array([model.static_bytes for model in models], np.float64)
        self.dynamic: Floats = np.array([model.dynamic_bytes for model in models], np.float64)
        self.loads: Floats = np.stack([rates, static], axis=1)
        if not (np.isfinite(self.loads).all() and min(self.loads.min(initial=0), 0) == 0):
            raise ValueError("rates and sizes must be finite and not negative")
        average = self.loads.sum(axis=0) / num_subclusters
        self.average: Floats = np.where(average > 0, average, 1.0)
        self._shares: Floats = np.where(average > 0, 1.0, 0.0)
        self.rate_max, self.memory_max = rate_max, memory_max
        self.weights: Floats = np.array([1.0, memory_weight])
        self.cost_max = moving.cost_max
        self.current, self.costs = self._moves(moving.current, moving.move_costs)
        self._refuse_impossible(models)

    def _moves(
        self, current: Sequence[int] | None, move_costs: Sequence[float] | None
    ) -> tuple[Assignment | None, Floats]:
        m, l = self.num_models, self.num_subclusters  # noqa: E741 - the paper's letter
        if current is None:
            return None, np.zeros((m, l))
        held = np.array(current, np.int64)
        each = np.ones(m) if move_costs is None else np.array(move_costs, np.float64)
        if held.shape != (m,) or each.shape != (m,):
            raise ValueError("one current sub-cluster and one cost a model")
        if not ((held >= UNPLACED) & (held < l)).all() or (each < 0).any():
            raise ValueError(f"current sub-clusters are in [{UNPLACED}, {l}), costs not negative")
        # (10) counts a move twice, for the unloading and for the loading.
        placed = held != UNPLACED
        costs = np.repeat((each * np.where(placed, 2, 1))[:, None], l, axis=1)
        costs[np.flatnonzero(placed), held[placed]] = 0.0
        return held, costs

    def _refuse_impossible(self, models: Sequence[PartitionModel]) -> None:
        """Raise where a bound visibly cannot hold."""
        num = self.num_subclusters
        total_rate, total_bytes = self.loads.sum(axis=0)
        if total_rate > num * self.rate_max * SLACK:
            raise NoPartition(
                f"{total_rate:g} rps are more than {num} sub-clusters of {self.rate_max:g} take",
                "rate_max",
            )
        total_bytes += self.dynamic.max(initial=0)
        if total_bytes > num * self.memory_max:
            raise NoPartition(
                f"models need {total_bytes:.0f} bytes, {num} sub-clusters have "
                f"{self.memory_max:.0f} each",
                "memory_max",
            )
        for model in models:
            if model.rate_rps > self.rate_max * SLACK:
                raise NoPartition(
                    f"{model.model_id}: {model.rate_rps:g} rps are more than a sub-cluster's "
                    f"{self.rate_max:g}",
                    "rate_max",
                )
            if model.static_bytes + model.dynamic_bytes > self.memory_max:
                raise NoPartition(
                    f"{model.model_id}: {model.static_bytes} bytes and {model.dynamic_bytes} to "
                    f"run are more than a sub-cluster's {self.memory_max:.0f}",
                    "memory_max",
                )
        least = float(self.costs.min(axis=1, initial=math.inf).sum()) if self.num_models else 0.0
        if least > self.cost_max * SLACK:
            raise NoPartition(
                f"loading the models that are loaded nowhere costs {least:g}, allowed is "
                f"{self.cost_max:g}",
                "cost_max",
            )

    def without_cost_bound(self) -> "Problem":
        """The same, but anything may be moved."""
        unbound = copy.copy(self)
        unbound.cost_max = math.inf
        return unbound

    def totals(self, assignment: Assignment) -> Floats:
        """[l, 2]: rate and static memory of each sub-cluster."""
        return np.stack(
            [np.bincount(assignment, self.loads[:, kind], self.num_subclusters) for kind in (0, 1)],
            axis=1,
        )

    def deviations(self, totals: Floats) -> Floats:
        """[k, 2]: by how much totals [k, 2] differ from the average, as shares of it, signed."""
        return totals / self.average - self._shares

    def objective(self, totals: Floats) -> float:
        """(3), with rates and bytes as shares of a sub-cluster's average."""
        return float(np.abs(self.deviations(totals)).max(axis=0) @ self.weights)

    def overflow(self, assignment: Assignment, totals: Floats) -> float:
        """By how much the sub-clusters break (4) and (5), in averages; 0 if they do not."""
        largest = np.zeros(self.num_subclusters)
        np.maximum.at(largest, assignment, self.dynamic)
        return float(self.excess(totals[:, 0], totals[:, 1] + largest).sum())

    def excess(self, rates: Floats, memory: Floats) -> Floats:
        """The same for each of some sub-clusters: rates and bytes of one shape."""
        over_rate = np.maximum(rates - self.rate_max, 0.0)
        over_rate[rates <= self.rate_max * SLACK] = 0.0
        over_memory = np.maximum(memory - self.memory_max, 0.0)
        return np.asarray(over_rate / self.average[0] + over_memory / self.average[1])

    def cost(self, assignment: Assignment) -> float:
        """Left side of (10)."""
        return float(self.costs[np.arange(self.num_models), assignment].sum())

    def is_feasible(self, assignment: Assignment) -> bool:
        """Whether (4), (5) and (10) hold."""
        if self.overflow(assignment, self.totals(assignment)) > 0:
            return False
        return self.cost(assignment) <= self.cost_max * SLACK

    def partition(
        self,
        assignment: Assignment,
        solver: Literal["milp", "greedy", "random"],
        optimal: bool = False,
    ) -> Partition:
        """The answer for a feasible assignment."""
        totals = self.totals(assignment)
        rate_imbalance, memory_imbalance = np.ptp(totals, axis=0) / self.average
        return Partition(
            assignment=tuple(int(j) for j in assignment),
            objective=self.objective(totals),
            rate_imbalance=float(rate_imbalance),
            memory_imbalance=float(memory_imbalance),
            cost=self.cost(assignment),
            solver=solver,
            optimal=optimal,
        )
