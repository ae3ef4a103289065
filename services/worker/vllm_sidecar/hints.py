"""Sessions that a stock vLLM's clients announce: their KV is brought into host memory."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.worker.core.effects import StageSession
from services.worker.core.kv.staged import Staged
from services.worker.kv_client import KvClient
from shared.blocks import BlockKey
from shared.hints import HINT_HOLD_NS, HintShares
from shared.ids import DEFAULT_TENANT, SessionId
from shared.owners import OwnerKey, owner_key
from shared.runtime.tasks import Tasks
from shared.wire.messages import ADVISORY_PRIORITY

SESSIONS_MAX = 65_536
KEYS_MAX = 1 << 22  # of all sessions: 64 MiB


@dataclass(slots=True)
class _Held:
    staged: Staged
    ends: asyncio.TimerHandle


class SessionKeys:
    """Which blocks sessions have, of those that stored some lately."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys: OrderedDict[OwnerKey, list[BlockKey]] = OrderedDict()
        self._keys_max = keys_max
        self._num_keys = 0

    def add(self, owner: OwnerKey, key: BlockKey, parent: BlockKey) -> None:
        """A session stored a block: what it has behind the block's parent is not its history any
        more.
        """
        keys = self._keys.setdefault(owner, [])
        self._keys.move_to_end(owner)
        num_kept = keys.index(parent) + 1 if parent in keys else 0 if keys else len(keys)
        self._num_keys += num_kept + 1 - len(keys)
        keys[num_kept:] = [key]
        while len(self._keys) > SESSIONS_MAX or self._num_keys > self._keys_max:
            self._num_keys -= len(self._keys.popitem(last=False)[1])

    def of(self, owner: OwnerKey) -> Sequence[BlockKey]:
        """A session's blocks, in order."""
        return self._keys.get(owner, ())


class Hints:
    """Args:
    num_blocks: that host memory may hold for hints and all else.
    """

    def __init__(self, kv: KvClient, keys: SessionKeys, num_blocks: int) -> None:
        self._kv = kv
        self._keys = keys
        self._shares = HintShares.of_pages(num_blocks)
        self._held: dict[OwnerKey, _Held] = {}
        self._tasks = Tasks("releasing a ticket failed")
        self._num_asked = 0

    async def expect(self, session_id: SessionId, expires_in_s: float) -> int:
        """A session's turn is about to come: hold its KV in host memory so long, at most. How many
        blocks there are.
        """
        owner = owner_key(DEFAULT_TENANT, session_id)
        keys = tuple(self._keys.of(owner)[: self._shares.room(DEFAULT_TENANT, owner)])
        if not keys or not self._kv.is_connected:
            return 0
        self._num_asked += 1
        question = StageSession(
            self._num_asked, DEFAULT_TENANT, session_id, ADVISORY_PRIORITY, keys=keys
        )
        self._shares.take(DEFAULT_TENANT, owner, len(keys))  # others are asked for meanwhile
        staged = await self._kv.stage_session(question)
        num_blocks = 0 if staged is None else staged.num_blocks
        self._shares.give(DEFAULT_TENANT, owner, len(keys) - num_blocks)
        if staged is None:
            return 0
        self.withdraw(owner)
        loop = asyncio.get_running_loop()
        held_s = min(expires_in_s, HINT_HOLD_NS / 1e9)
        self._held[owner] = _Held(staged, loop.call_later(held_s, self.withdraw, owner))
        return staged.num_blocks

    def withdraw(self, owner: OwnerKey) -> None:
        """Its turn is here, or does not come."""
        if (held := self._held.pop(owner, None)) is None:
            return
        held.ends.cancel()
        self._shares.give(DEFAULT_TENANT, owner, held.staged.num_blocks)
        if held.staged.epoch == self._kv.epoch:
            self._tasks.spawn(self._kv.release(ticket=held.staged.ticket))
