"""Batch policies to compare with, after other systems, beside those of the scheduler."""

from collections.abc import Collection, Hashable, Sequence
from importlib import import_module
from typing import Protocol, cast

from services.scheduler import policies
from services.scheduler.core.batching.effects import Effect
from services.scheduler.core.batching.job import Delays, Job, ModelSpec
from services.scheduler.core.batching.rules import RULES

BASELINES = {
    "clockwork": "ClockworkBatcher",
    "nexus": "NexusBatcher",
    "shepherd": "ShepherdBatcher",
}
POLICIES = (*RULES, *BASELINES)


class Policy(Protocol):
    """What of the scheduler's `Batcher` a simulation needs whose models and GPUs do not change."""

    wake_at_ns: int

    def add_model(self, spec: ModelSpec) -> None: ...

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]: ...

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]: ...

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]: ...

    def on_wake(self, now_ns: int) -> Sequence[Effect]: ...


def make_batcher(policy: str, delays: Delays | None = None) -> Policy:
    """The batcher of this name, a baseline's too.

    Raises:
        ConfigError: there is none.
    """
    if policy not in BASELINES:
        return policies.make_batcher(policy, delays)
    module = import_module(f"loadtest.policies.{policy}")
    return cast(Policy, getattr(module, BASELINES[policy])(delays or Delays()))
