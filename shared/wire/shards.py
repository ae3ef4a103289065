"""Which of several processes that divide work between them has what: the same in every process and
release.

A turn's id ends in the hash of the session that it belongs to. So a process that sees a turn, even
if only its id, knows which shard it belongs to, however many there are.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from shared.ids import SessionId, TenantId, TurnId, WorkerId
from shared.wire.messages import AgentRef, TurnSubmit, prefix_session

HASH_CHARS = 4
HASHES = 1 << (4 * HASH_CHARS)


@dataclass(frozen=True, slots=True)
class Share:
    """What one of `num` schedulers that place turns has: number `index`."""

    index: int = 0
    num: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.num:
            raise ValueError(f"there is no shard {self.index} of {self.num}")

    @property
    def is_all(self) -> bool:
        return self.num == 1

    def has_turn(self, turn_id: TurnId) -> bool:
        return self.num == 1 or turn_shard(turn_id, self.num) == self.index

    def has_worker(self, worker_id: WorkerId) -> bool:
        """Whether what one of them alone may do to this worker is this one's to do."""
        return self.num == 1 or _hash(worker_id) % self.num == self.index


def turn_id_in(name: str, tenant: TenantId, session_id: SessionId | None) -> TurnId:
    """The id of a turn of this session, that begins with a name of its own; None: of no session,
    so whichever shard has it.

    >>> turn_id_in("turn-1", TenantId("acme"), SessionId("chat"))
    'turn-1-3f2a'
    """
    if session_id is None:
        return TurnId(name)
    return TurnId(f"{name}-{_session_hash(tenant, session_id):0{HASH_CHARS}x}")


def expected_as(
    session_id: SessionId | None, agent: AgentRef | None, *, is_new: bool
) -> SessionId | None:
    """Under what name a turn's place may be kept. An agent's first turn in a workflow is expected
    before its session is known; so it goes to the shard that expects it.
    """
    if session_id is None or agent is None or not is_new:
        return session_id
    return prefix_session(agent)


def turn_shard(turn_id: TurnId, num_shards: int) -> int:
    """Which scheduler shard places a turn.

    >>> turn_shard(TurnId("turn-3f9c0a-000a"), 8)
    2
    """
    _, dash, digits = turn_id.rpartition("-")
    if dash and len(digits) == HASH_CHARS:
        try:
            return int(digits, 16) % num_shards
        except ValueError:
            pass  # it only looks like one
    return _hash(turn_id) % num_shards


def by_shard(submits: Iterable[TurnSubmit], num_shards: int) -> dict[int, list[TurnSubmit]]:
    """Those of each shard together, in order."""
    found: dict[int, list[TurnSubmit]] = {}
    for submit in submits:
        found.setdefault(turn_shard(submit.turn_id, num_shards), []).append(submit)
    return found


def session_shard(tenant: TenantId, session_id: SessionId, num_shards: int) -> int:
    """Which scheduler shard keeps places for a session: the one of its turns."""
    return _session_hash(tenant, session_id) % num_shards


def _session_hash(tenant: TenantId, session_id: SessionId) -> int:
    return _hash(f"{len(tenant)}:{tenant}{session_id}")


def _hash(name: str) -> int:
    return zlib.crc32(name.encode(errors="surrogatepass")) % HASHES
