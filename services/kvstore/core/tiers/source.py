"""Where the arena's pages come from: this host's disk, another host, or the object store."""

from dataclasses import dataclass, field

from services.kvstore.core.tiers.backlog import Backlog, TierSpeed
from shared.ids import HostId
from shared.locations import OBJECTS
from shared.wire.messages import KvPlace

PEER_BATCH_NS = 10_000_000  # of a link's time: what a more urgent page may have to wait for
FIRST_BATCH_BYTES = 1024 * 1024  # of a peer whose link was not measured yet
OBJECT_BATCH_BYTES = 32 * 1024 * 1024  # of many requests at once: each takes long to begin


@dataclass(slots=True, eq=False)
class Source:
    """Attributes:
    host_id: of the peer, or `OBJECTS`; None: this host's disk.
    backlog: what waits for it.
    speed: how fast it was lately.
    num_batches: that it was asked for and has not brought.
    """

    host_id: HostId | None = None
    backlog: Backlog = field(default_factory=Backlog)
    speed: TierSpeed = field(default_factory=TierSpeed)
    num_batches: int = 0

    @property
    def place(self) -> KvPlace:
        """What it is, seen from a worker of this host."""
        if self.host_id is None:
            return "disk"
        return "objects" if self.host_id == OBJECTS else "peer"

    def batch_bytes(self, bytes_max: int) -> int:
        """How much to ask for at once, at most `bytes_max`: of a peer what its link carries in a
        while, since what was asked for comes before what becomes urgent meanwhile.
        """
        if self.host_id is None:
            return bytes_max
        if self.host_id == OBJECTS:
            return OBJECT_BATCH_BYTES
        if not self.speed.is_measured:
            return min(bytes_max, FIRST_BATCH_BYTES)
        return min(bytes_max, self.speed.num_bytes(PEER_BATCH_NS))
