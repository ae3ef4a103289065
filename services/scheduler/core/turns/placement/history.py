"""What bringing a session's KV to a worker takes, from where it is."""

from dataclasses import dataclass, field

from services.scheduler.core.turns.placement.policy import Demand
from services.scheduler.core.turns.records import Worker
from services.scheduler.core.turns.speeds import Speeds
from shared.eviction import RECENT_NS
from shared.ids import HostId


@dataclass(slots=True)
class History:
    """A session's KV, as far as is known.

    Args:
        home: its last turn ran there.
        is_recent: so lately that it is probably still in the pool there, or in the host's arena.
    """

    demand: Demand
    home: Worker | None
    is_recent: bool
    _home_host: HostId | None = field(init=False)
    _best_host: HostId | None = field(init=False)  # that has most of it; None: nobody has any
    _num_best: int = field(init=False)  # blocks there, as far as somebody told
    _block_tokens: int = 0  # for which the next one is
    _num_tokens: int = 0

    def __post_init__(self) -> None:
        kv_at = self.demand.kv_at
        self._home_host = None if self.home is None else self.home.report.host_id
        self._best_host, self._num_best = self._home_host, 0
        if kv_at:
            self._best_host = max(kv_at, key=lambda host_id: (kv_at[host_id], host_id))
            self._num_best = kv_at[self._best_host]

    @classmethod
    def of(cls, demand: Demand, home: Worker | None) -> "History":
        """Of a session whose last turn ran at its home."""
        return cls(demand, home, home is not None and demand.idle_ns < RECENT_NS)

    @classmethod
    def brought_to(cls, kept: Worker, demand: Demand) -> "History":
        """Of a session whose place was kept there: what its turn needs was brought up."""
        return cls(demand, kept, True)

    def tokens(self, block_tokens: int) -> int:
        """How many tokens' KV there is somewhere, at most the prompt's."""
        if block_tokens != self._block_tokens:
            demand, self._block_tokens = self.demand, block_tokens
            self._num_tokens = 0
            if self._best_host is not None:
                num = max(demand.num_history_tokens, self._num_best * block_tokens)
                self._num_tokens = min(num, demand.num_prompt_tokens or num)
        return self._num_tokens

    def fetch_ms(self, worker: Worker, speeds: Speeds) -> float:
        """What bringing so many tokens' KV to this worker takes, by measured speeds."""
        if self.is_recent and worker is self.home:
            return 0.0
        bytes_per_s = min(speeds.load_bytes_per_s, self._source_bytes_per_s(worker, speeds))
        return self._num_bytes(speeds) * 1e3 / bytes_per_s

    def load_ms(self, speeds: Speeds) -> float:
        """What bringing it from a host's arena to the device takes."""
        return self._num_bytes(speeds) * 1e3 / speeds.load_bytes_per_s

    def _num_bytes(self, speeds: Speeds) -> float:
        return self.tokens(speeds.block_tokens) / speeds.block_tokens * speeds.block_bytes

    def _source_bytes_per_s(self, worker: Worker, speeds: Speeds) -> float:
        """How fast it comes into the arena of the worker's host. A host that has a part of it
        brings up that, and computes the rest or has it from another one: it counts as one that
        has to ask.
        """
        host_id = worker.report.host_id
        if host_id == self._home_host:
            return speeds.load_bytes_per_s if self.is_recent else speeds.source_bytes_per_s
        if self._num_best and self.demand.kv_at.get(host_id, 0) == self._num_best:
            return speeds.source_bytes_per_s
        if self._best_host is None:
            return speeds.other_bytes_per_s
        return speeds.peer_bytes_per_s.get(self._best_host, speeds.other_bytes_per_s)
