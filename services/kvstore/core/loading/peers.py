"""Other hosts: which are worth asking for blocks, and which failed lately."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from heapq import nlargest

from services.kvstore.core.base.backoff import Backoff
from shared.ids import HostId
from shared.locations import is_objects, known_places
from shared.owners import NO_OWNER, OwnerKey

ASKED_MAX = 2  # hosts, for one stage
FAILED_MAX = 1024  # hosts remembered for their failures
DELETED_NS = 60_000_000_000  # longer than what was asked for before a deletion may come after it
DELETED_MAX = 65_536  # deletions remembered


class Peers:
    """Args:
    host_id: our own, which is never asked.
    """

    def __init__(self, host_id: HostId) -> None:
        self._host_id = host_id
        self._failed: OrderedDict[HostId, Backoff] = OrderedDict()

    def worth_asking(self, kv_at: Mapping[HostId, int], num_here: int, now_ns: int) -> list[HostId]:
        """Those that are said to have more than the `num_here` leading blocks that this host has,
        the most first; none that failed just now. `ANYWHERE`, if no location is known: then
        hosts are to be found.
        """
        more = {
            host_id: num_blocks
            for host_id, num_blocks in kv_at.items()
            if num_blocks > num_here
            and host_id != self._host_id
            and not is_objects(host_id)
            and not self.is_avoided(host_id, now_ns)
        }
        hosts = known_places(more)
        return nlargest(ASKED_MAX, hosts, key=lambda host_id: hosts[host_id]) or [*more]

    def is_avoided(self, host_id: HostId, now_ns: int) -> bool:
        """Whether it is too early to try it again."""
        failures = self._failed.get(host_id)
        return failures is not None and failures.is_waiting(now_ns)

    def on_failed(self, host_id: HostId, now_ns: int) -> None:
        """It did not answer, broke off, or sent what cannot be right."""
        failures = self._failed.setdefault(host_id, Backoff())
        if failures.is_waiting(now_ns):
            return  # what was asked for before fails as well
        failures.on_failed(now_ns)
        self._failed.move_to_end(host_id)
        if len(self._failed) > FAILED_MAX:
            self._failed.popitem(last=False)

    def on_good(self, host_id: HostId) -> None:
        """It gave what it was asked for."""
        self._failed.pop(host_id, None)


class Deleted:
    """Sessions that were deleted a short while ago: what was asked for before must not come back
    from a host that did not know of it yet.
    """

    def __init__(self) -> None:
        self._at_ns: OrderedDict[OwnerKey, int] = OrderedDict()

    def add(self, owner: OwnerKey, now_ns: int) -> None:
        """This session is deleted."""
        if owner == NO_OWNER:
            return
        self._at_ns[owner] = now_ns
        self._at_ns.move_to_end(owner)
        if len(self._at_ns) > DELETED_MAX:
            self._at_ns.popitem(last=False)

    def __contains__(self, owner: OwnerKey) -> bool:
        return owner in self._at_ns

    def expire(self, now_ns: int) -> None:
        """Forget those that are long ago."""
        while self._at_ns and next(iter(self._at_ns.values())) < now_ns - DELETED_NS:
            self._at_ns.popitem(last=False)


def most_offered(offers: Iterable[tuple[HostId, int]], num_here: int) -> tuple[HostId, int] | None:
    """Of what hosts said that they have, the most; None: none has more than is here."""
    best = max(offers, key=lambda offer: offer[1], default=None)
    return best if best is not None and best[1] > num_here else None
