"""What bringing a session's KV to a worker takes, from where it is."""

from dataclasses import dataclass, field
from math import inf

from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.fleet.speeds import Speeds
from services.scheduler.core.placement.policy import Demand
from shared.eviction import RECENT_NS
from shared.ids import HostId
from shared.locations import is_objects


@dataclass(slots=True)
class History:
    """The location of a session's KV, as far as it is known.

    Args:
        home: the worker of its last turn.
        is_recent: the KV is probably still in that worker's pool or the host's memory tier.
    """

    demand: Demand
    home: Worker | None
    is_recent: bool
    _home_host: HostId | None = field(init=False)
    _best_host: HostId | None = field(init=False)  # has most of it; None: no host has any
    _num_best: int = field(init=False)  # blocks there, as far as reported
    _num_objects: int = field(init=False)  # blocks in the object store
    _block_tokens: int = 0  # that `_num_tokens` was computed for
    _num_tokens: int = 0

    def __post_init__(self) -> None:
        kv_at = self.demand.kv_at
        self._home_host = None if self.home is None else self.home.report.host_id
        hosts = {host_id: num for host_id, num in kv_at.items() if not is_objects(host_id)}
        self._num_objects = max((num for at, num in kv_at.items() if is_objects(at)), default=0)
        self._best_host, self._num_best = self._home_host, 0
        if hosts:
            self._best_host = max(hosts, key=lambda host_id: (hosts[host_id], host_id))
            self._num_best = hosts[self._best_host]

    @classmethod
    def of(cls, demand: Demand, home: Worker | None) -> "History":
        """The history of a session whose last turn ran on `home`."""
        return cls(demand, home, home is not None and demand.idle_ns < RECENT_NS)

    @classmethod
    def prefetched_to(cls, kept: Worker, demand: Demand) -> "History":
        """The history of a session that has been prefetched to its reserved worker."""
        return cls(demand, kept, True)

    def tokens(self, block_tokens: int) -> int:
        """Tokens whose KV exists on some tier, at most the prompt's."""
        if block_tokens != self._block_tokens:
            demand, self._block_tokens = self.demand, block_tokens
            self._num_tokens = 0
            if self._best_host is not None or self._num_objects:
                num_blocks = max(self._num_best, self._num_objects)
                num = max(demand.num_history_tokens, num_blocks * block_tokens)
                self._num_tokens = min(num, demand.num_prompt_tokens or num)
        return self._num_tokens

    def fetch_ms(self, worker: Worker, speeds: Speeds) -> float:
        """Time to bring that KV to this worker, by measured speeds: that of the slowest link.

        Blocks on the worker's host come from there, and only the rest from elsewhere: from the host
        with most of them, or from the object store if that has more, as the kvstore does.
        """
        if self.is_recent and worker is self.home:
            return 0.0
        load_ms = self.load_ms(speeds)
        host_id = worker.report.host_id
        if self.is_recent and host_id == self._home_host:
            return load_ms
        num_blocks = self._num_blocks(speeds)
        num_here = min(self._num_on(host_id), num_blocks)
        block_ms = speeds.block_bytes * 1e3
        here_ms = num_here * block_ms / speeds.source_bytes_per_s
        rest_ms = (num_blocks - num_here) * block_ms / self._rest_bytes_per_s(speeds)
        return max(load_ms, here_ms, rest_ms)

    def load_ms(self, speeds: Speeds) -> float:
        """Time to load it from a host's memory tier to the device."""
        return self._num_blocks(speeds) * speeds.block_bytes * 1e3 / speeds.load_bytes_per_s

    def _num_blocks(self, speeds: Speeds) -> float:
        return self.tokens(speeds.block_tokens) / speeds.block_tokens

    def _num_on(self, host_id: HostId) -> float:
        """Blocks of it on a host's disk: all, if no host has more; if nothing is reported, all are
        on the last worker's host.
        """
        num_here = self.demand.kv_at.get(host_id, 0)
        num_most = max(self._num_best, self._num_objects)
        has_all = num_here == num_most if num_most else host_id == self._home_host
        return inf if has_all else num_here

    def _rest_bytes_per_s(self, speeds: Speeds) -> float:
        """Speed at which blocks that a host lacks reach its memory tier."""
        if self._num_objects > self._num_best:
            return speeds.objects_bytes_per_s
        if self._best_host is None:
            return speeds.other_bytes_per_s
        return speeds.peer_bytes_per_s.get(self._best_host, speeds.other_bytes_per_s)
