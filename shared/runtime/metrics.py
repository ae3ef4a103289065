"""Prometheus metrics under one prefix."""

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from shared.runtime.metrics_server import serve_metrics

PREFIX = "symphony_"

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

# Of prompts, replies and steps, in tokens: 1, 2, 5 and so on, as other servers have them.
TOKEN_BUCKETS = tuple(
    float(step * 10**power) for power in range(6) for step in (1, 2, 5) if step * 10**power < 10**6
)


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    """A counter named with the project's prefix; made once, at import of the module that counts."""
    return Counter(PREFIX + name, text, labels)


def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge named with the project's prefix."""
    return Gauge(PREFIX + name, text, labels)


def histogram(
    name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS_S
) -> Histogram:
    """A histogram named with the project's prefix; the unit ends the name."""
    return Histogram(PREFIX + name, text, labels, buckets=buckets)


def expose(port: int, address: str = "127.0.0.1") -> None:
    """Serve ``/metrics`` on `port` from a daemon thread; 0 turns it off."""
    if port:
        serve_metrics(port, address)
