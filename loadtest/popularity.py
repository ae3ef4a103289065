"""How often each adapter is asked for, as shares of the load."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.functions_trace import calls_in
from loadtest.simulator.arrivals import popularity
from shared.errors import InvalidRequest

Shares = NDArray[np.float64]


def shares_of(text: str, num: int, trace: Path, seed: int) -> Shares:
    """Each adapter's share, in a seeded order: popular adapters have no ranks of their own.

    Args:
        text: ``uniform``, ``zipf:S`` for shares like ``1 / place**S``, or ``maf``: as functions of
            the trace were called, one function an adapter (CaraServe, 7.1), drawn from all.
        num: of adapters.
        trace: see `calls_in`.

    Returns:
        ``[num]``, 1 in all.

    Raises:
        InvalidRequest: none of these, or the trace cannot be read or has fewer functions.
    """
    rng = np.random.default_rng(seed)
    if text == "maf":
        calls = calls_in(trace)
        if len(calls) < num:
            raise InvalidRequest(
                f"--popularity maf: the trace has {len(calls)} functions, one an adapter: "
                f"--adapters {num} are more"
            )
        shares = rng.choice(calls, num, replace=False)
        if not shares.any():
            raise InvalidRequest(f"--popularity maf: no function in {trace} was called")
        return np.asarray(shares / shares.sum(), np.float64)
    try:
        return rng.permutation(np.array(popularity("equal" if text == "uniform" else text, num)))
    except InvalidRequest:
        raise InvalidRequest(
            f"--popularity {text}: use uniform, zipf:S as zipf:0.9, or maf"
        ) from None
