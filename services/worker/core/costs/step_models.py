"""How the time of decode steps follows the adapters in them: the papers' models, and ours.

`padded` and `unpadded` are CaraServe's (section 5): rows times the largest rank, and the sum of the
rows' ranks, as its two kernels cost. Ours is `distinct`: the bytes of different adapters, which
every step reads once. Each is fitted as ``base + per_row * rows + per_unit * units``, and its R^2
says how much of the steps' differences it explains. For placement by rank, and for the worker's
metrics.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

STEP_MEMORY = 0.995  # weight of a step once the next one came
STEPS_MIN = 32.0  # before a model is used
NEWS_MIN = 16  # steps, before they are fitted again
SAME = 1e-9  # as a share: rounding


@dataclass(frozen=True, slots=True)
class LoraLoad:
    """The adapters of a step.

    Attributes:
        num_rows: on an adapter.
        rank_max, rank_sum: of the rows' ranks.
        num_bytes: of different adapters' images.
    """

    num_rows: int = 0
    rank_max: int = 0
    rank_sum: int = 0
    num_bytes: int = 0

    @property
    def units(self) -> dict[str, int]:
        """What each model multiplies."""
        padded = self.num_rows * self.rank_max
        return {"padded": padded, "unpadded": self.rank_sum, "distinct": self.num_bytes}


NO_LORA = LoraLoad()


@dataclass(frozen=True, slots=True)
class StepModel:
    """A fitted model, ns.

    Attributes:
        r2: 1: it explains every difference; 0: none; below that it is worse than the mean.
    """

    base_ns: float
    row_ns: float
    unit_ns: float
    r2: float


@dataclass(slots=True)
class _Fit:
    """Least squares of a time on a constant, rows and units; old steps count ever less."""

    products: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 3)))
    with_time: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    time_squared: float = 0.0

    def add(self, num_rows: int, units: int, duration_ns: int) -> None:
        point = np.array([1.0, num_rows, units])
        self.products = STEP_MEMORY * self.products + np.outer(point, point)
        self.with_time = STEP_MEMORY * self.with_time + point * duration_ns
        self.time_squared = STEP_MEMORY * self.time_squared + float(duration_ns) ** 2

    def solve(self) -> StepModel | None:
        """None while too few steps were seen, or all took as long."""
        weight = self.products[0, 0]
        spread = self.time_squared - self.with_time[0] ** 2 / max(weight, 1.0)
        if weight < STEPS_MIN or spread <= SAME * self.time_squared:
            return None
        scale = np.sqrt(np.maximum(self.products.diagonal(), 1.0))  # bytes are millions of rows
        scaled = self.products / np.outer(scale, scale)
        factors, *_ = np.linalg.lstsq(scaled, self.with_time / scale, rcond=1e-9)
        base, row, unit = (factors / scale).tolist()
        coefficients = np.array([base, row, unit])
        left = (
            self.time_squared
            - 2 * coefficients @ self.with_time
            + coefficients @ self.products @ coefficients
        )
        return StepModel(base, row, unit, float(1.0 - max(left, 0.0) / spread))


@dataclass(slots=True)
class StepModels:
    """All three, learnt from the decode steps of which some had adapters."""

    _fits: dict[str, _Fit] = field(default_factory=dict)
    _solved: dict[str, StepModel] = field(default_factory=dict)
    _num_new: int = 0  # steps since

    def add(self, num_rows: int, load: LoraLoad, duration_ns: int) -> None:
        """A decode step of so many rows ran."""
        if not self._fits and not load.num_rows:
            return  # no turn uses adapters
        for name, units in load.units.items():
            self._fits.setdefault(name, _Fit()).add(num_rows, units, duration_ns)
        self._num_new += 1

    def solve(self) -> dict[str, StepModel]:
        """Those that can tell something, by name; asked often, as good as new."""
        if self._num_new >= NEWS_MIN:
            solved = {name: fit.solve() for name, fit in self._fits.items()}
            self._solved = {name: model for name, model in solved.items() if model is not None}
            self._num_new = 0
        return self._solved
