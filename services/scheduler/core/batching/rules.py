"""Window and gathering rules by name: they make a batch policy of the central batcher."""

from collections.abc import Callable
from functools import partial

from services.scheduler.core.batching.gathering import (
    AllowanceGathering,
    Gathering,
    PrefixGathering,
    TargetGathering,
)
from services.scheduler.core.batching.job import ModelSpec
from services.scheduler.core.batching.windows import (
    DeferredWindow,
    EnoughWindow,
    TimeoutWindow,
    Window,
)
from shared.errors import ConfigError

ENOUGH_TO_START = 0.98  # of the staggered batch's jobs per second
ENOUGH_TO_KEEP = 0.94
JOBS_NOT_WAITED_FOR = 0.6  # expected jobs for which a batch does not wait
SHARE_LEFT_TO_OTHERS = 0.35  # of the target, for each other model on a GPU

# Window and gathering for a model that so many GPUs serve.
MakeRules = Callable[[ModelSpec, int], tuple[Window, Gathering]]


def staggered_size(spec: ModelSpec, num_gpus: int) -> int:
    """Batch size of a perfectly staggered execution: ``(1 + 1/N) l(b) <= SLO``.

    Source: deferred batch scheduling, equation 1.
    """
    return max(spec.largest(int(spec.slo_ns / (1 + 1 / num_gpus))), 1)


def smallest_as_fast(spec: ModelSpec, size: int, share: float) -> int:
    """The smallest batch that gives at least `share` of the jobs per second of one of `size`."""
    wanted = share * size / spec.batch_ns[size]
    return next(b for b in range(1, size + 1) if b / spec.batch_ns[b] >= wanted)


def deferred_rules(spec: ModelSpec, num_gpus: int) -> tuple[Window, Gathering]:
    """As printed in the paper, dropping heads to keep the staggered batch size."""
    return DeferredWindow(), TargetGathering(staggered_size(spec, num_gpus))


def deferred_prefix_rules(spec: ModelSpec, num_gpus: int) -> tuple[Window, Gathering]:
    """As printed in the paper, taking the prefix that fits."""
    return DeferredWindow(), PrefixGathering()


def timeout_rules(
    spec: ModelSpec, num_gpus: int, *, timeout_ns: int = 0
) -> tuple[Window, Gathering]:
    """A fixed time after the first job's arrival; immediately if `timeout_ns` is 0."""
    return TimeoutWindow(timeout_ns), PrefixGathering()


def supplied_size(spec: ModelSpec) -> int:
    """The largest batch whose jobs arrive soon enough: ``l(b) + (b - 1) / rate <= SLO``."""
    sizes = range(spec.size_max, 1, -1)
    gap_ns = 1e9 / spec.rate_rps
    return next((b for b in sizes if spec.batch_ns[b] + (b - 1) * gap_ns <= spec.slo_ns), 1)


def worth_ns(spec: ModelSpec, full: int, num_gpus: int) -> int:
    """The longest target that makes batches larger: the model's own, which `full` depends on, or
    what staggered batches of the largest size need.
    """
    is_largest = full == spec.size_max
    return int((1 + 1 / num_gpus) * spec.batch_ns[full]) if is_largest else spec.slo_ns


def steady_rules(spec: ModelSpec, num_gpus: int) -> tuple[Window, Gathering]:
    """Deferred, with room for bursts, and dropping within what a 99th percentile allows."""
    full = staggered_size(spec, num_gpus)
    usual = min(full, supplied_size(spec))
    # Other models that wait for the same few GPUs may be served first, as late as this one would
    # be. Among many GPUs one is free soon: the exponent was found by experiment, with 1 to 64 GPUs.
    others = SHARE_LEFT_TO_OTHERS * (spec.num_models - 1) / num_gpus**1.5
    early_ns = min(
        max(int(JOBS_NOT_WAITED_FOR * 1e9 / spec.rate_rps), int(others * spec.slo_ns)), spec.slo_ns
    )
    window = EnoughWindow(
        smallest_as_fast(spec, full, ENOUGH_TO_START), early_ns, worth_ns(spec, full, num_gpus)
    )
    return window, AllowanceGathering(
        smallest_as_fast(spec, usual, ENOUGH_TO_KEEP), usual, most=full
    )


RULES: dict[str, MakeRules] = {
    "steady": steady_rules,
    "deferred": deferred_rules,
    "deferred-prefix": deferred_prefix_rules,
    "eager": timeout_rules,
}


def make_rules(policy: str) -> MakeRules:
    """The rules of this name; ``timeout:MS`` waits so many milliseconds.

    Raises:
        ConfigError: there are none of this name; lists the names.
    """
    if policy in RULES:
        return RULES[policy]
    name, _, argument = policy.partition(":")
    if name == "timeout":
        try:
            timeout_ns = int(float(argument) * 1e6)
        except (ValueError, OverflowError):  # no number, or no finite one
            timeout_ns = -1
        if timeout_ns < 0:
            raise ConfigError(f"batch policy {policy!r}: write timeout:MS, as timeout:5")
        return partial(timeout_rules, timeout_ns=timeout_ns)
    raise ConfigError(f"no batch policy {policy!r}: use one of {', '.join([*RULES, 'timeout:MS'])}")
