"""Whose work is next, where several tenants wait for the same few slots or processes."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from shared.ids import TenantId

Item = TypeVar("Item")

SERVED_MAX = 4096  # tenants whose latest service is remembered


class TenantQueues(Generic[Item]):
    """Work that waits. Next is the tenant that has the least work running; of several, the one that
    was served longest ago. A tenant's own work is served in the order in which it came.
    """

    def __init__(self) -> None:
        self._queues: dict[TenantId, deque[Item]] = {}
        self._served_at: OrderedDict[TenantId, int] = OrderedDict()
        self._num_served = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Item]:
        for queue in self._queues.values():
            yield from queue

    def counts(self) -> dict[TenantId, int]:
        """How much of each tenant's work waits; tenants without any are left out."""
        return {tenant: len(queue) for tenant, queue in self._queues.items()}

    def put(self, tenant: TenantId, item: Item, *, is_first: bool = False) -> None:
        """Add work behind the tenant's own, or before it."""
        queue = self._queues.setdefault(tenant, deque())
        if is_first:
            queue.appendleft(item)
        else:
            queue.append(item)

    def remove(self, tenant: TenantId, item: Item) -> None:
        """Take out work that waits."""
        self._queues[tenant].remove(item)
        if not self._queues[tenant]:
            del self._queues[tenant]

    def drop(self, which: Callable[[Item], bool]) -> list[Item]:
        """Take out the work of which this is true."""
        dropped = [item for item in self if which(item)]
        if dropped:
            left = {of: deque(i for i in its if not which(i)) for of, its in self._queues.items()}
            self._queues = {tenant: queue for tenant, queue in left.items() if queue}
        return dropped

    def take(self, running: Mapping[TenantId, int], of_tenant: int) -> tuple[TenantId, Item] | None:
        """Take out what is served next, if any may be.

        Args:
            running: each tenant's work that is being served.
            of_tenant: how much of a tenant's may be.
        """
        allowed = [tenant for tenant in self._queues if running.get(tenant, 0) < of_tenant]
        if not allowed:
            return None
        tenant = min(allowed, key=lambda t: (running.get(t, 0), self._served_at.get(t, 0)))
        item = self._queues[tenant].popleft()
        if not self._queues[tenant]:
            del self._queues[tenant]
        self.on_served(tenant)
        return tenant, item

    def on_served(self, tenant: TenantId) -> None:
        """Work of the tenant was served; `take` says so itself."""
        self._num_served += 1
        self._served_at[tenant] = self._num_served
        self._served_at.move_to_end(tenant)
        if len(self._served_at) > SERVED_MAX:
            self._served_at.popitem(last=False)
