"""What clients saw, in figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadtest.bench.adapters.load import BASE
from loadtest.chaos.sse import Stream
from loadtest.jobs.processes import Memory

TROUBLE_CHARS_MAX = 120
TROUBLES_MAX = 8


def trouble_of(stream: Stream, max_tokens: int) -> str:
    """Why a request failed; empty: it did not."""
    if stream.trouble:
        return stream.trouble[:TROUBLE_CHARS_MAX]
    num = len(stream.tokens)
    return "" if num == max_tokens else f"{num} tokens in place of {max_tokens}"


def of_clients(streams: Sequence[Stream], max_tokens: int) -> dict[str, Any]:
    """Requests, failures with what was wrong, and times to the first token from when each request
    was due, of adapters and of the base.
    """
    troubles = Counter(trouble for each in streams if (trouble := trouble_of(each, max_tokens)))
    on_base = [each for each in streams if each.client == BASE]
    on_adapters = [each for each in streams if each.client != BASE]
    return {
        "requests": len(streams),
        "base_requests": len(on_base),
        "adapters_asked": len({each.client for each in on_adapters}),
        "failures": sum(troubles.values()),
        "troubles": dict(troubles.most_common(TROUBLES_MAX)),
        "ttft_ms": _percentiles(on_adapters),
        "base_ttft_ms": _percentiles(on_base),
    }


def of_memory(before: Mapping[str, Memory], after: Mapping[str, Memory]) -> dict[str, Any]:
    """Of each process, first and last; see `Memory`."""
    return {
        name: {
            "first": round(first.resident_mb, 1),
            "last": round(after[name].resident_mb, 1),
            "own_first": round(first.own_mb, 1),
            "own_last": round(after[name].own_mb, 1),
        }
        for name, first in before.items()
    }


def ttft_ms(stream: Stream) -> float:
    """From when it was due to its first token."""
    return (stream.pieces_at[0] - stream.sent_at) * 1e3


def _percentiles(streams: Sequence[Stream]) -> dict[str, float] | None:
    """None: none came to a first token."""
    times = [ttft_ms(each) for each in streams if each.pieces_at]
    if not times:
        return None
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "max": round(max(times), 1)}
