"""Assigns work to a few child processes, and ends work that takes too long.

A child does one piece at a time. Work that a child does not end within the limit is over, and so is
the child: nothing else stops what it runs. Work whose child died for another reason is given to
another one once, unless the work itself ended the child. `TenantQueues` says whose work is next.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from shared.ids import DEFAULT_TENANT, TenantId
from shared.tenant_queues import TenantQueues

Why = Literal["full", "lost", "too_long", "crashed"]
State = Literal["absent", "starting", "idle", "busy", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Attributes:
    num_children: processes at most.
    children_of_tenant: that work for one tenant at once; 0: all.
    work_ns: how long a child works on one piece of work.
    waiting_max: pieces of work that wait for a child; more are refused. One tenant's are at most
        half of them if it may not have all children.
    wait_ns: how long one waits, while children start too.
    start_ns: how long a child may take to start, or to load what its work needs.
    """

    num_children: int
    work_ns: int
    children_of_tenant: int = 0
    waiting_max: int = 256
    wait_ns: int = 60_000_000_000
    start_ns: int = 60_000_000_000

    @property
    def waiting_of_tenant(self) -> int:
        """Pieces of one tenant's work that wait for a child."""
        return -(-self.waiting_max // 2) if self.children_of_tenant else self.waiting_max


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a process."""

    child: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process; `ProcessPool.on_ended` follows."""

    child: int


@dataclass(frozen=True, slots=True)
class Give:
    """Hand a piece of work to a child."""

    child: int
    work: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A piece of work is over without a result.

    Attributes:
        why: `full`: no child was free in time; `lost`: children died of it, or none can be started;
            `too_long`: it did not end within the limit; `crashed`: it ended its child, and would
            end any other.
    """

    work: int
    why: Why


Effect = Start | Kill | Give | Fail


@dataclass(slots=True)
class _Work:
    number: int
    tenant: TenantId
    until_ns: int
    is_second_try: bool = False


@dataclass(slots=True)
class _Child:
    state: State = "absent"
    work: _Work | None = None
    until_ns: int = 0
    has_begun: bool = False


class ProcessPool:
    """The children and the work. Children are numbered from 0; the caller numbers the work."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._children = [_Child() for _ in range(limits.num_children)]
        self._waiting: TenantQueues[_Work] = TenantQueues()

    def on_open(self, now_ns: int) -> list[Effect]:
        """There will be work: begin a child before it comes."""
        return [self._start(0, now_ns)]

    def on_work(self, work: int, now_ns: int, tenant: TenantId = DEFAULT_TENANT) -> list[Effect]:
        """Add a piece of a tenant's work."""
        limits, num_own = self._limits, self._waiting.counts().get(tenant, 0)
        if len(self._waiting) >= limits.waiting_max or num_own >= limits.waiting_of_tenant:
            return [Fail(work, "full")]
        self._waiting.put(tenant, _Work(work, tenant, now_ns + limits.wait_ns))
        return self._serve(now_ns)

    def on_abandoned(self, work: int) -> None:
        """Its requester is gone. Work that a child has begun runs to its end."""
        self._waiting.drop(lambda waiting: waiting.number == work)
        for child in self._children:
            if child.work is not None and child.work.number == work:
                child.work.is_second_try = True  # it need not be given to another one

    def on_ready(self, child: int, now_ns: int) -> list[Effect]:
        """A child has started."""
        if self._children[child].state != "starting":
            return []  # it took too long: its end is to come
        self._children[child].state = "idle"
        return self._serve(now_ns)

    def work_of(self, child: int) -> int | None:
        """What a child works on, if it does."""
        work = self._children[child].work
        return None if work is None else work.number

    def on_begun(self, child: int, now_ns: int) -> None:
        """A child has all that it needs for its work and works."""
        busy = self._children[child]
        busy.has_begun = True
        busy.until_ns = now_ns + self._limits.work_ns

    def on_done(self, child: int, now_ns: int) -> list[Effect]:
        """A child is through with its work."""
        if self._children[child].state != "busy":
            return []
        self._children[child] = _Child("idle")
        return self._serve(now_ns)

    def on_ended(self, child: int, now_ns: int, *, is_by_work: bool = False) -> list[Effect]:
        """A child's process is no more.

        Args:
            is_by_work: its work ended it, as any other child's.
        """
        ended, self._children[child] = self._children[child], _Child()
        effects: list[Effect] = []
        if ended.work is not None and is_by_work:
            effects.append(Fail(ended.work.number, "crashed"))
        elif ended.work is not None and ended.work.is_second_try:
            effects.append(Fail(ended.work.number, "lost"))
        elif ended.work is not None:
            ended.work.is_second_try = True
            ended.work.until_ns = now_ns + self._limits.wait_ns
            self._waiting.put(ended.work.tenant, ended.work, is_first=True)
        elif ended.state == "starting":
            effects += self._fail_unless_served()
        elif ended.state == "ending" and ended.has_begun:  # the next long text need not wait for it
            effects.append(self._start(child, now_ns))
        return effects + self._serve(now_ns)

    def on_tick(self, now_ns: int) -> list[Effect]:
        """End what takes too long."""
        effects: list[Effect] = []
        for number, child in enumerate(self._children):
            if child.state not in {"starting", "busy"} or child.until_ns > now_ns:
                continue
            if child.work is not None:
                effects.append(Fail(child.work.number, "too_long" if child.has_begun else "lost"))
            self._children[number] = _Child("ending", has_begun=child.has_begun)
            effects.append(Kill(number))
            if child.state == "starting":
                effects += self._fail_unless_served()
        late = self._waiting.drop(lambda work: work.until_ns <= now_ns)
        return effects + [Fail(work.number, "full") for work in late]

    def next_at_ns(self) -> int | None:
        """When `on_tick` has something to do; None: not before something else happens."""
        running = [c.until_ns for c in self._children if c.state in {"starting", "busy"}]
        return min([*running, *(work.until_ns for work in self._waiting)], default=None)

    def _serve(self, now_ns: int) -> list[Effect]:
        """Give waiting work to idle children, and begin as many more as the rest needs."""
        effects: list[Effect] = []
        for number, child in enumerate(self._children):
            if child.state == "idle" and (work := self._next()) is not None:
                until_ns = now_ns + self._limits.start_ns
                self._children[number] = _Child("busy", work, until_ns)
                effects.append(Give(number, work.number))
        num_starting = sum(child.state == "starting" for child in self._children)
        num_wanted = self._num_servable() if num_starting < len(self._waiting) else 0
        for number, child in enumerate(self._children):
            if child.state == "absent" and num_starting < num_wanted:
                effects.append(self._start(number, now_ns))
                num_starting += 1
        return effects

    def _num_servable(self) -> int:
        """Pieces of waiting work that their tenants' shares allow to run now."""
        most, busy = self._most_of_tenant(), self._num_busy()
        waiting = self._waiting.counts().items()
        return sum(min(count, most - busy[tenant]) for tenant, count in waiting)

    def _most_of_tenant(self) -> int:
        return self._limits.children_of_tenant or len(self._children)

    def _num_busy(self) -> Counter[TenantId]:
        """Children that work for each tenant."""
        return Counter(child.work.tenant for child in self._children if child.work is not None)

    def _next(self) -> _Work | None:
        taken = self._waiting.take(self._num_busy(), self._most_of_tenant())
        return None if taken is None else taken[1]

    def _start(self, child: int, now_ns: int) -> Start:
        self._children[child] = _Child("starting", until_ns=now_ns + self._limits.start_ns)
        return Start(child)

    def _fail_unless_served(self) -> list[Effect]:
        """A start failed: what waits need not wait for one more unless another child lives."""
        if any(child.state in {"starting", "idle", "busy"} for child in self._children):
            return []
        return [Fail(work.number, "lost") for work in self._waiting.drop(lambda _: True)]
