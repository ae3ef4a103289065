"""Batch policies by name.

`deferred` is the paper's; `steady`, the default, is ours: see `rules.py`.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Protocol

from services.scheduler.core.batching.batcher import WindowBatcher
from services.scheduler.core.batching.clockwork import ClockworkBatcher
from services.scheduler.core.batching.effects import Effect
from services.scheduler.core.batching.job import Delays, Job, ModelSpec
from services.scheduler.core.batching.nexus import NexusBatcher
from services.scheduler.core.batching.rules import RULES, make_rules
from services.scheduler.core.batching.shepherd import ShepherdBatcher
from shared.errors import ConfigError

DEFAULT_POLICY = "steady"


class Batcher(Protocol):
    """Central batching: every event returns what is to be done, in order.

    GPUs are numbers, models any hashable keys. `wake_at_ns` is the instant at which `on_wake` is
    due; it may be earlier than anything happens.
    """

    wake_at_ns: int

    def add_model(self, spec: ModelSpec) -> None:
        """A model has come, or its times are known better."""
        ...

    def remove_model(self, key: Hashable) -> Sequence[Effect]:
        """A model has gone; what waits for it is dropped."""
        ...

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """A GPU has come, free, or serves other models than before."""
        ...

    def remove_gpu(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU has gone. What it ran is the caller's to submit again."""
        ...

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """A job has come. Its model must be known."""
        ...

    def num_ahead(self, key: Hashable, deadline_ns: int) -> int:
        """How many waiting jobs of a model are due no later than this."""
        ...

    def on_cancel(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """A job is not wanted any more."""
        ...

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU's oldest batch is over."""
        ...

    def on_wake(self, now_ns: int) -> Sequence[Effect]:
        """The instant `wake_at_ns` has come."""
        ...


Make = Callable[[Delays], Batcher]

POLICIES: dict[str, Make] = {
    **{name: partial(WindowBatcher, rules) for name, rules in RULES.items()},
    "clockwork": ClockworkBatcher,
    "nexus": NexusBatcher,
    "shepherd": ShepherdBatcher,
}


def make_batcher(policy: str, delays: Delays | None = None) -> Batcher:
    """The batcher of this name; ``timeout:MS`` waits so many milliseconds.

    Raises:
        ConfigError: there is none of this name; lists the names.
    """
    delays = delays or Delays()
    if policy in POLICIES:
        return POLICIES[policy](delays)
    if policy.startswith("timeout:"):
        return WindowBatcher(make_rules(policy), delays)
    known = ", ".join([*POLICIES, "timeout:MS"])
    raise ConfigError(f"no batch policy {policy!r}: use one of {known}")
