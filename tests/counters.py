"""What a process's own metrics say."""

from prometheus_client import Counter, Gauge


def value_of(metric: Counter | Gauge) -> float:
    """The number that a metric without labels, or with all of them given, shows now."""
    (shown,) = metric.collect()
    return next(each.value for each in shown.samples if not each.name.endswith("_created"))
