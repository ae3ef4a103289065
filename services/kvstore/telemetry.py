"""The kvstore's metrics, taken from the core's own counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from services.kvstore.core import KvCore
from shared.runtime.metrics import counter, gauge

BYTES = gauge("kv_bytes", "Bytes of KV held, by tier", ["tier"])
_PEER_EVENTS = counter(
    "kv_peer_events_total", "What happened between this host and others", ["event"]
)
_PEER_BYTES = counter("kv_peer_bytes_total", "KV between this host and others", ["direction"])
_STAGED = counter(
    "kv_staged_pages_total", "Pages that turns and hints asked for, by where they were", ["tier"]
)
_OBJECT_EVENTS = counter(
    "kv_object_events_total", "What happened between this host and the object store", ["event"]
)
_UNSAVED = gauge("kv_unsaved_sessions", "Sessions that wait to be written to the object store")
_EVICTED = counter("kv_evicted_pages_total", "Pages that left the arena to make room")
_COUNTERS = {
    "num_pages_loaded": counter("kv_loaded_pages_total", "Pages that came into the arena"),
    "num_pages_fetched": counter("kv_fetched_pages_total", "Of those, from other hosts"),
    "num_pages_corrupt": counter("kv_corrupt_total", "Pages whose checksum was wrong"),
    "num_pages_unread": counter("kv_unread_pages_total", "Pages not read, or not fetched"),
    "num_blocks_committed": counter("kv_committed_blocks_total", "Blocks taken over from workers"),
    "num_blocks_unwritten": counter("kv_unwritten_blocks_total", "Blocks the disk did not take"),
    "num_blocks_refused": counter("kv_refused_blocks_total", "Blocks not worth a write to disk"),
    "num_blocks_dropped": counter("kv_dropped_blocks_total", "Blocks deleted for age or size"),
    "num_tickets_expired": counter("kv_expired_tickets_total", "Stages not released in time"),
    "num_runs_saved": _OBJECT_EVENTS.labels("saved"),
    "num_runs_unsaved": _OBJECT_EVENTS.labels("unsaved"),
    "num_runs_dropped": _OBJECT_EVENTS.labels("dropped"),
    "num_pages_from_objects": _OBJECT_EVENTS.labels("pages"),
    "num_disks_anew": counter("kv_disks_anew_total", "KV databases reset for damage"),
}


class Telemetry:
    """Copies a core's counts to Prometheus, and those of what goes between hosts.

    Args:
        peer_counts: see `Peering.counts`.
    """

    def __init__(self, core: KvCore, peer_counts: Callable[[], Counter[str]]) -> None:
        self._core = core
        self._peer_counts = peer_counts
        self._seen_of_peers: Counter[str] = Counter()
        self._seen = asdict(core.counts)
        self._of_tiers: dict[str, int] = {}
        self._num_evicted = 0

    def export(self) -> None:
        """Bring every metric up to date."""
        counts = asdict(self._core.counts)
        for name, metric in _COUNTERS.items():
            metric.inc(counts[name] - self._seen[name])
        for name, count in (of_tiers := self._core.counts.pages_by_tier()).items():
            _STAGED.labels(name).inc(count - self._of_tiers.get(name, 0))
        self._of_tiers = of_tiers
        self._seen = counts
        of_peers = self._peer_counts()
        for name, count in (of_peers - self._seen_of_peers).items():
            what, _, direction = name.partition("bytes_")
            metric = _PEER_BYTES.labels(direction) if direction else _PEER_EVENTS.labels(what)
            metric.inc(count)
        self._seen_of_peers = of_peers
        usage = self._core.usage
        _EVICTED.inc(usage.num_pages_evicted - self._num_evicted)
        self._num_evicted = usage.num_pages_evicted
        BYTES.labels("arena").set(usage.arena_bytes_used)
        BYTES.labels("disk").set(usage.disk_bytes)
        BYTES.labels("objects").set(usage.objects_bytes)
        _UNSAVED.set(usage.num_sessions_unsaved)
