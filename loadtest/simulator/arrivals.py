"""When jobs arrive, and for which model: numpy arrays made beforehand from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import InvalidRequest

Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Jobs in order of time.

    Attributes:
        at_ns: instant of each, ns, never decreasing.
        model: index of its model.
        end_ns: end of the time in which jobs arrive.
    """

    at_ns: Instants
    model: NDArray[np.int64]
    end_ns: int

    def __len__(self) -> int:
        return len(self.at_ns)


def renewal(rates: Sequence[float], seconds: float, seed: int, shape: float = 1.0) -> Arrivals:
    """Independent streams with Gamma-distributed gaps; shape 1 is Poisson, less is burstier.

    The same seed at another rate gives the same gaps, scaled, so that neighbouring rates can be
    compared.

    Args:
        rates: of each model, jobs/s.
    """
    streams = [
        _unit_times(rate * seconds, seed, index, shape) / rate if rate > 0 else np.empty(0)
        for index, rate in enumerate(rates)
    ]
    return _merge(streams, seconds)


def changing(
    knots_s: NDArray[np.float64], rates: NDArray[np.float64], seed: int, shape: float = 1.0
) -> Arrivals:
    """Streams whose rates are piecewise linear.

    Args:
        knots_s: instants, increasing from 0, [K].
        rates: of each model at each knot, jobs/s, [M, K].

    Each stream is one of rate 1 whose time is stretched: exact for Poisson streams, and for others
    what bursts that follow the load look like.
    """
    streams = []
    for index, rate in enumerate(rates):
        # Linear between fine steps, so that the inverse of a quadratic is near enough.
        fine_s = np.linspace(0, knots_s[-1], 64 * len(knots_s))
        fine_rate = np.interp(fine_s, knots_s, rate)
        steps = np.diff(fine_s) * (fine_rate[1:] + fine_rate[:-1]) / 2
        total = np.concatenate([[0.0], np.cumsum(steps)])
        unit = _unit_times(float(total[-1]), seed, index, shape)
        streams.append(np.interp(unit, total, fine_s))
    return _merge(streams, float(knots_s[-1]))


def _unit_times(expected: float, seed: int, index: int, shape: float) -> NDArray[np.float64]:
    """Instants of a stream of rate 1 up to `expected`."""
    rng = np.random.default_rng([seed, index])
    times: list[NDArray[np.float64]] = []
    last = 0.0
    block = 4096
    while last < expected:
        chunk = last + np.cumsum(rng.gamma(shape, 1 / shape, block))
        times.append(chunk)
        last = float(chunk[-1])
    unit = np.concatenate(times) if times else np.empty(0)
    return unit[unit < expected]


def _merge(streams: list[NDArray[np.float64]], seconds: float) -> Arrivals:
    at_s = np.concatenate(streams) if streams else np.empty(0)
    model = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    order = np.argsort(at_s, kind="stable")
    return Arrivals((at_s[order] * 1e9).astype(np.int64), model[order], round(seconds * 1e9))


def popularity(text: str, num_models: int) -> list[float]:
    """Each model's share of the load: ``equal``, or ``zipf:S`` for shares like ``1 / rank**S``.

    Raises:
        InvalidRequest: neither.
    """
    kind, _, argument = text.partition(":")
    exponent = 0.0
    if kind == "zipf":
        try:
            exponent = float(argument)
        except ValueError:
            kind = ""
    if kind not in ("equal", "zipf") or (kind == "equal" and argument) or not 0 <= exponent < 10:
        raise InvalidRequest(f"--popularity {text!r}: use equal or zipf:S, as zipf:0.9")
    weights: NDArray[Any] = 1 / np.arange(1, num_models + 1) ** exponent
    return [float(weight) for weight in weights / weights.sum()]
