"""When a batch may start: the difference between deferred, eager and timeout batching.

A window opens at ``base(head) - lead[size]``. The base depends on the head of the queue only and
the table on the size only, so that the arrival of a job, by far the commonest event, costs one
subtraction and one comparison.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec


class Window(Protocol):
    """Opens a batch's schedulable window."""

    def base_ns(self, head: Job) -> int:
        """What the head of the queue contributes."""
        ...

    def lead_ns(self, spec: ModelSpec, delays: Delays) -> list[int]:
        """How long before its base a batch of each size may be dispatched; a full batch always."""
        ...


@dataclass(frozen=True, slots=True)
class DeferredWindow:
    """From the frontrun moment on, ``deadline - l(size + 1)``: whoever arrived later could not join
    without making the batch late. Source: deferred batch scheduling, section 3.1.
    """

    def base_ns(self, head: Job) -> int:
        return head.deadline_ns

    def lead_ns(self, spec: ModelSpec, delays: Delays) -> list[int]:
        batch_ns = spec.batch_ns
        leads = (
            max(batch_ns[size + 1], batch_ns[size] + delays.slack_ns) + delays.of(size)
            for size in range(spec.size_max)
        )
        return [*leads, NEVER_NS]


@dataclass(frozen=True, slots=True)
class EnoughWindow:
    """As `DeferredWindow`, but it does not wait for what is not worth it.

    A batch of `enough` jobs need not wait for more: where it is nearly as efficient as the largest,
    starting early leaves the next batch time that a burst will need. And no batch waits for the
    last `early_ns` before its latest moment: so soon hardly a job comes, while a GPU may be busy
    just then. Nor does a batch wait as if its target were longer than `worth_ns` after its head's
    arrival: what a model's largest batch cannot use only makes answers late.
    """

    enough: int
    early_ns: int = 0
    worth_ns: int = NEVER_NS

    def base_ns(self, head: Job) -> int:
        return min(head.deadline_ns, head.arrived_at_ns + self.worth_ns)

    def lead_ns(self, spec: ModelSpec, delays: Delays) -> list[int]:
        slack_ns = max(delays.slack_ns, self.early_ns)
        lead_ns = DeferredWindow().lead_ns(spec, replace(delays, slack_ns=slack_ns))
        return [NEVER_NS if size >= self.enough else lead for size, lead in enumerate(lead_ns)]


@dataclass(frozen=True, slots=True)
class TimeoutWindow:
    """From `timeout_ns` after the head's arrival on; 0 is eager batching. Source: section 3.4."""

    timeout_ns: int = 0

    def base_ns(self, head: Job) -> int:
        return head.arrived_at_ns + self.timeout_ns

    def lead_ns(self, spec: ModelSpec, delays: Delays) -> list[int]:
        return [0] * spec.size_max + [NEVER_NS]
