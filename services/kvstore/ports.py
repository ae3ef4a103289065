"""What the kvstore needs of the machine. Tests and simulations give their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.kvstore.adapters.store import AdapterStore
from services.kvstore.index.redis_link import Redis
from services.kvstore.peers.transport import PeerTransport
from services.kvstore.tiers.disk import BlockStore, Scan
from services.kvstore.tiers.executors import Executors
from services.kvstore.tiers.objects.store import ObjectStore
from shared.arena import ArenaView
from shared.ids import WorkerId


class HostMemory(Protocol):
    """The arenas of this host, made when the first worker asks; `Arenas` is the real one.

    Attributes:
        by_page_bytes: the ones that exist; changes.
        on_grown: called in any thread: page size in bytes, and how many pages can be used now.
    """

    on_grown: Callable[[int, int], None]

    @property
    def by_page_bytes(self) -> Mapping[int, ArenaView]: ...

    async def get(self, page_bytes: int, num_layers: int) -> ArenaView:
        """The arena of this page size.

        Raises:
            NoCapacity: there is no room for one that is of use to a model of `num_layers`.
        """
        ...

    def num_ready(self, page_bytes: int) -> int:
        """How many pages of an arena can be used now."""
        ...

    def capacity_bytes(self, page_bytes: int) -> int:
        """What all pages of an arena may take, now or later."""
        ...

    def grow(self, page_bytes: int, num_pages: int) -> None:
        """So many pages of an arena are soon to be used; `on_grown` reports those that can be."""
        ...

    def close(self) -> None:
        """Remove every arena."""
        ...


class Leases(Protocol):
    """Detects workers whose process has ended; `LeaseFiles` is the real one."""

    def add(self, worker_id: WorkerId, incarnation: str) -> Path:
        """The file that this incarnation is to lock."""
        ...

    def drop(self, worker_id: WorkerId, incarnation: str) -> None:
        """Forget an incarnation."""
        ...

    def poll(self) -> list[tuple[WorkerId, str]]:
        """Incarnations that have ended."""
        ...

    def close(self) -> None:
        """Drop every lease."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Attributes:
    scan: what is on `disk` at the start.
    was_reset: the database was damaged or outdated, and is a new one.
    objects: None: there is no object store.
    peers: None: no KV goes from host to host.
    executors: make threads.
    """

    disk: BlockStore
    scan: Scan
    was_reset: bool = False
    memory: HostMemory
    leases: Leases
    redis: Redis
    objects: ObjectStore | None = None
    peers: PeerTransport | None = None
    adapters: AdapterStore
    executors: Executors
