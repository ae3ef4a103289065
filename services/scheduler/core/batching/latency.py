"""The run time of a batch: l(b) = alpha b + beta, fitted, updated by measurements, with a safety
margin (deferred batch scheduling, section 2.1).
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimits:
    """How fast a `BatchLatency` learns.

    Attributes:
        prior_weight: batches that the profile weighs as much as, > 0.
        num_remembered: batches after which a report has lost all but 1/e of its weight, > 1.
        num_residuals_max: latest batches that the margin is taken from.
        quantile: share of the batches that should be done within line plus margin.
        num_between_refreshes: batches between two updates of the margin, once it has seen so many.
        outlier_factor: a batch this many times slower or faster than expected counts as this many
            times: one stall must not move the line.
        num_outliers_believed: this many in a row, all too slow or all too fast, move the line, as
            far as the least of them: so that one stall among slow batches does not move it either.
        change_min: share by which some entry of the table must change to make a new version.
    """

    prior_weight: float = 4.0
    num_remembered: int = 256
    num_residuals_max: int = 256
    quantile: float = 0.99
    num_between_refreshes: int = 16
    outlier_factor: float = 1.5
    num_outliers_believed: int = 4
    change_min: float = 0.01


class _Line(NamedTuple):
    """``alpha_ns * size + beta_ns``, both >= 0."""

    alpha_ns: float
    beta_ns: float

    def at(self, size: int) -> float:
        return self.alpha_ns * size + self.beta_ns


class _Sums(NamedTuple):
    """Weighted sums over (x = size, y = time), sufficient to fit a line."""

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def after(self, size: int, ns: float, keep: float) -> "_Sums":
        """The sums, decayed by `keep`, with one more point."""
        return _Sums(
            self.n * keep + 1,
            self.x * keep + size,
            self.y * keep + ns,
            self.xx * keep + size * size,
            self.xy * keep + size * ns,
        )

    def line(self) -> _Line:
        """Least squares over lines with alpha, beta >= 0. Needs two distinct sizes."""
        alpha = (self.n * self.xy - self.x * self.y) / (self.n * self.xx - self.x * self.x)
        if alpha < 0:
            return _Line(0.0, self.y / self.n)
        beta = (self.y - alpha * self.x) / self.n
        if beta < 0:
            return _Line(self.xy / self.xx, 0.0)
        return _Line(alpha, beta)


class BatchLatency:
    """Run time by batch size of one model on one kind of device.

    Starts from a profile, then follows the workers' reports. The profile is a prior of fixed weight
    in two steps: one scale factor, settled by a few batches of any size, adapts the whole profile;
    the scaled profile then pulls the fitted line at all sizes with the weight of `prior_weight`
    batches, which dominates only where few batches are observed. An observation takes O(1).

    `table` and `largest` change only if some entry would change by `change_min` or more; `version`
    counts these changes.
    """

    def __init__(self, profile: _Line, size_max: int, r2: float, limits: LatencyLimits) -> None:
        """Use `linear` or `fit`."""
        if size_max < 1:
            raise ValueError(f"size_max must be at least 1, not {size_max}")
        if not (math.isfinite(profile.at(1)) and min(profile) >= 0 and profile.at(1) > 0):
            raise ValueError(
                f"a batch cannot take {profile.alpha_ns} * size + {profile.beta_ns} ns"
            )
        self._profile = profile
        self._size_max = size_max
        self._r2 = r2
        self._limits = limits
        self._keep = math.exp(-1 / limits.num_remembered)
        self._sums = _Sums()
        self._line = profile
        self._margin_ns = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=limits.num_residuals_max)
        self._num_observed = 0
        # Ratios to the expected time of the latest batches, while all were too slow or too fast.
        self._outliers: deque[float] = deque(maxlen=limits.num_outliers_believed)
        self._version = 0
        self._publish()

    @classmethod
    def linear(
        cls, alpha_ns: float, beta_ns: float, size_max: int, limits: LatencyLimits | None = None
    ) -> "BatchLatency":
        """From a profile that is a line.

        Raises:
            ValueError: a negative or infinite term, both zero, or no size.

        >>> BatchLatency.linear(1.0, 5.0, size_max=3).table()
        [0, 6, 7, 8]
        """
        return cls(_Line(alpha_ns, beta_ns), size_max, 1.0, limits or LatencyLimits())

    @classmethod
    def fit(
        cls, pairs: Sequence[tuple[int, int]], size_max: int, limits: LatencyLimits | None = None
    ) -> "BatchLatency":
        """From measured (size, ns) pairs, by least squares.

        A negative intercept refits through the origin; times that fall with the size become their
        mean.

        Raises:
            ValueError: fewer than two distinct sizes, which say nothing about the slope; a size or
                time below 1.

        >>> BatchLatency.fit([(1, 6), (4, 9)], size_max=2).table()
        [0, 6, 7]
        """
        for size, ns in pairs:
            _check(size, ns)
        if len({size for size, _ in pairs}) < 2:
            raise ValueError("a latency profile needs times of at least two distinct batch sizes")
        sums = _Sums()
        for size, ns in pairs:
            sums = sums.after(size, ns, keep=1.0)
        line = sums.line()
        return cls(line, size_max, _r2(line, pairs), limits or LatencyLimits())

    @property
    def alpha_ns(self) -> float:
        """Time of each further item, ns, as fitted now."""
        return self._line.alpha_ns

    @property
    def beta_ns(self) -> float:
        """Time of any batch, ns, as fitted now."""
        return self._line.beta_ns

    @property
    def r2(self) -> float:
        """Share of the profile's measured variance that its line explains; 1 for `linear`."""
        return self._r2

    @property
    def margin_ns(self) -> int:
        """What all but 1 - `quantile` of the latest batches took at most over the line, >= 0."""
        return self._margin_ns

    @property
    def version(self) -> int:
        """Grows whenever `table` changes."""
        return self._version

    def observe(self, size: int, ns: int) -> None:
        """A worker ran a batch of `size` in `ns`.

        Raises:
            ValueError: either is below 1.
        """
        _check(size, ns)
        self._sums = self._sums.after(size, self._believed(size, ns), self._keep)
        self._recent.append((size, ns))
        self._num_observed += 1
        self._line = self._refit()
        every = self._limits.num_between_refreshes
        if self._num_observed < every or self._num_observed % every == 0:
            self._margin_ns = self._measured_margin_ns()
        if self._moved() >= self._limits.change_min:
            self._version += 1
            self._publish()

    def table(self) -> list[int]:
        """ns by batch size, 0..size_max, margin included, non-decreasing; entry 0 is 0.

        The same list until `version` changes; not to be written to.
        """
        return self._table

    def largest(self, budget_ns: int) -> int:
        """Largest size up to size_max that is done within the budget; 0 if none. O(log size_max).

        >>> BatchLatency.linear(1.0, 5.0, size_max=8).largest(9)
        4
        """
        return max(0, bisect_right(self._table, budget_ns) - 1)

    def _believed(self, size: int, ns: int) -> float:
        """The time to fit: outliers are clipped, unless enough of them agree."""
        expected, factor = self._line.at(size), self._limits.outlier_factor
        ratio = ns / expected
        if 1 / factor <= ratio <= factor:
            self._outliers.clear()
            return ns
        if self._outliers and (self._outliers[-1] > 1) != (ratio > 1):
            self._outliers.clear()
        self._outliers.append(ratio)
        if len(self._outliers) < self._limits.num_outliers_believed:
            return expected * (factor if ratio > 1 else 1 / factor)
        return expected * (min(self._outliers) if ratio > 1 else max(self._outliers))

    def _refit(self) -> _Line:
        sums, profile, weight = self._sums, self._profile, self._limits.prior_weight
        # Least squares for `scale` in times = scale * profile.
        times = profile.alpha_ns * sums.xy + profile.beta_ns * sums.y
        squares = (
            profile.alpha_ns**2 * sums.xx
            + 2 * profile.alpha_ns * profile.beta_ns * sums.x
            + profile.beta_ns**2 * sums.n
        )
        scale = (sums.n * times / squares + weight) / (sums.n + weight)
        scaled = _Line(profile.alpha_ns * scale, profile.beta_ns * scale)
        # The prior as points on the scaled profile, spread evenly over the sizes.
        sizes = max(2, self._size_max)
        x = weight * (sizes + 1) / 2
        xx = weight * (sizes + 1) * (2 * sizes + 1) / 6
        return _Sums(
            sums.n + weight,
            sums.x + x,
            sums.y + scaled.alpha_ns * x + scaled.beta_ns * weight,
            sums.xx + xx,
            sums.xy + scaled.alpha_ns * xx + scaled.beta_ns * x,
        ).line()

    def _measured_margin_ns(self) -> int:
        """Residuals are taken against the current line: a corrected profile needs no margin."""
        residuals = sorted(ns - self._line.at(size) for size, ns in self._recent)
        # The largest of a few is no percentile: a single late batch never counts.
        rank = min(math.ceil(self._limits.quantile * len(residuals)), len(residuals) - 1)
        return max(0, math.ceil(residuals[rank - 1])) if rank > 0 else 0

    def _moved(self) -> float:
        """Largest relative change of an entry since the last table.

        A quotient of two lines is monotone, so one of the ends has it.
        """
        return max(
            abs(self._line.at(size) + self._margin_ns - old) / old
            for size, old in ((1, self._published[0]), (self._size_max, self._published[1]))
        )

    def _publish(self) -> None:
        first, last = (self._line.at(size) + self._margin_ns for size in (1, self._size_max))
        self._published = (first, last)
        alpha, constant = self._line.alpha_ns, self._line.beta_ns + self._margin_ns
        self._table = [0]
        self._table += [math.ceil(alpha * n + constant) for n in range(1, self._size_max + 1)]


def _check(size: int, ns: int) -> None:
    if size < 1 or ns < 1:
        raise ValueError(f"batch size and time must be at least 1, not {size} and {ns} ns")


def _r2(line: _Line, pairs: Sequence[tuple[int, int]]) -> float:
    mean = sum(ns for _, ns in pairs) / len(pairs)
    total = sum((ns - mean) ** 2 for _, ns in pairs)
    missed = sum((ns - line.at(size)) ** 2 for size, ns in pairs)
    if total == 0:
        return 1.0 if missed == 0 else 0.0
    return 1 - missed / total
