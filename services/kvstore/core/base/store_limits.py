"""Limits that the kvstore keeps, and counts of what it did."""

from dataclasses import dataclass

from shared.eviction import EvictionName

WAIT_NS = 1_000_000_000  # while something is read
COPY_REST_NS = 1_000_000_000  # the turn that it came for needs the machine now
SAVED_NS = 1_000_000_000  # for so long what may be written or asked is saved up


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Attributes:
    disk_bytes_max: blocks on disk occupy at most about this.
    expiry_ns: blocks unused for this long are deleted.
    noted_ns: how far a block's last use, as written to disk and Redis, may lag behind.
    load_bytes_max: of one batch for the loader: what a more urgent page may have to wait for.
    ticket_ns: tickets not renewed for this long are released; leased pages that a worker
        does not name by then are taken back.
    lease_share: of an arena's pages, that all workers may have leased; of those that none has,
        that a worker may get which comes when the others have their part already.
    load_batches_max: batches with the loader at once; two keep it busy.
    eviction: policy by which idle blocks give their pages.
    disk_bytes_per_s: that are written to the disk, on average; 0: any number.
    write_wait_ns: that what is new waits at most, before it is written, while something is read.
    copy_rest_ns: that what came from elsewhere waits at least, before it is written.
    drops_max: blocks that leave the disk for age or room in one step.
    has_objects: whether there is an object store.
    objects_bytes_max: what this host has there is at most about this.
    objects_expiry_ns: sessions unused for this long leave it.
    objects_rest_ns: sessions are written to it when they have rested for this long.
    objects_bytes_per_s: that are written to it, on average; 0: any number.
    packs_objects: what is written to it is compressed.
    """

    disk_bytes_max: int
    expiry_ns: int
    noted_ns: int
    ticket_ns: int = 120_000_000_000
    load_bytes_max: int = 8 * 1024 * 1024
    lease_share: float = 0.5
    load_batches_max: int = 2
    eviction: EvictionName = "predicted"
    disk_bytes_per_s: float = 0.0
    write_wait_ns: int = WAIT_NS
    copy_rest_ns: int = COPY_REST_NS
    drops_max: int = 64  # take a millisecond or two
    has_objects: bool = False
    objects_bytes_max: int = 1 << 62
    objects_expiry_ns: int = 1 << 62
    objects_rest_ns: int = 30_000_000_000
    objects_bytes_per_s: float = 0.0
    packs_objects: bool = False


@dataclass(slots=True)
class Counts:
    """What has happened since the start."""

    num_pages_resident: int = 0  # that stages asked for and that were in the arena
    num_pages_loaded: int = 0
    num_pages_fetched: int = 0  # of those, from other hosts or the object store
    num_pages_corrupt: int = 0
    num_pages_unread: int = 0  # loads that failed for another reason
    num_blocks_committed: int = 0
    num_blocks_unwritten: int = 0  # dropped: the disk did not take them
    num_blocks_refused: int = 0  # not written: the disk had no room or time, and others save more
    num_blocks_dropped: int = 0  # left the disk for age or size
    num_tickets_expired: int = 0
    num_disks_anew: int = 0  # databases reset for damage
    num_pages_from_objects: int = 0  # of those fetched
    num_runs_saved: int = 0  # written to the object store
    num_runs_unsaved: int = 0  # that it did not take
    num_runs_dropped: int = 0  # left it for age or size

    def pages_by_tier(self) -> dict[str, int]:
        """Where the pages were that stages asked for: from the highest tier to the lowest."""
        return {
            "arena": self.num_pages_resident,
            "disk": self.num_pages_loaded - self.num_pages_fetched,
            "peer": self.num_pages_fetched - self.num_pages_from_objects,
            "objects": self.num_pages_from_objects,
        }
