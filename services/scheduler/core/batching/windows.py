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
        """By batch size, how long before its base it may be dispatched; a full batch always."""
        ...


@dataclass(frozen=True, slots=True)
class DeferredWindow:
    """From the frontrun moment on, ``deadline - l(size + 1)``: a job that arrives later could not
    join without making the batch late. Source: deferred batch scheduling, section 3.1.
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
    """As `DeferredWindow`, but does not wait where waiting gains little.

    A batch of `enough` jobs does not wait for more: if it is nearly as efficient as the largest,
    an early start leaves the next batch time that a burst will need. No batch waits during the last
    `early_ns` before its latest start: few jobs arrive in that time, and a GPU may be busy then.
    Nor does a batch wait longer than a target of `worth_ns` after its head's arrival would allow:
    time that a model's largest batch cannot use only delays answers.
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
