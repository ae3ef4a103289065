"""One turn each, by what was known of it; each checks that it met what it was to meet."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loadtest.bench.hints.hosts import FAR, NotAsked, Session, TwoHosts
from shared.blocks import BLOCK_TOKENS
from shared.errors import PeerUnavailable
from shared.ids import HostId
from shared.wire.messages import KvStage

TRIES_MAX = 4
AVOIDED_S = 1.5  # a host that did not answer is left alone for a second, then for two, ...
EARLY_S = 0.5  # said of a turn that comes when everything is there


@dataclass(frozen=True, slots=True)
class Seen:
    """Attributes:
    cached_tokens: of the prompt, that were not computed.
    transfer_s: from the hint until nothing was on its way any more; 0: that was not waited for.
    """

    ttft_ms: float
    cached_tokens: int
    transfer_s: float = 0.0


class Trials:
    """Args:
        can_be_computed: a turn may well compute all of a history that is on its way.

    Attributes:
        num_void: turns that were run again, because the far host's kvstore had not answered in
            time where its history is.
    """

    def __init__(
        self, hosts: TwoHosts, history_tokens: int, new_tokens: int, *, can_be_computed: bool
    ) -> None:
        self._hosts = hosts
        self._history_tokens = history_tokens
        self._new_tokens = new_tokens
        self._can_be_computed = can_be_computed
        self.num_void = 0

    async def resident(self) -> Seen:
        """The history was made here right before."""
        session = self._hosts.session(self._history_tokens)
        await self._hosts.store(self._hosts.near, session)
        return await self._all_here(session, {})

    async def hinted(self) -> Seen:
        """Everything came before the turn, and is on the disk as well."""
        return await self._again(self._hinted)

    async def led(self, lead_s: float) -> Seen:
        """The hint came so long before the turn."""

        async def once() -> Seen:
            session = await self._far_session()
            begun_at = time.monotonic()
            await self._hosts.hint(session, lead_s)
            await asyncio.sleep(max(begun_at + lead_s - time.monotonic(), 0.0))
            seen, _ = await self._come(session)
            return seen

        return await self._again(once)

    async def unhinted(self) -> Seen:
        """The turn says where its history is."""

        async def once() -> Seen:
            seen, asked = await self._come(await self._far_session())
            if not any(FAR in stage.kv_at for stage in asked):
                raise PeerUnavailable("a turn did not ask for its history")
            return seen

        return await self._again(once)

    async def recompute(self) -> Seen:
        """The history is nowhere."""
        session = self._hosts.session(self._history_tokens)
        trace, _ = await self._hosts.come(session, self._new_tokens, {})
        if trace.cached_tokens:
            raise PeerUnavailable(f"{trace.cached_tokens} tokens of a new history were cached")
        await self._hosts.wait_settled()
        return Seen(trace.ttft_ms, 0)

    async def _hinted(self) -> Seen:
        hosts, session = self._hosts, await self._far_session()
        num_before = (await hosts.near.kv_stats()).disk_blocks
        begun_at = time.monotonic()
        await hosts.hint(session, EARLY_S)
        await hosts.wait_arrived()
        transfer_s = time.monotonic() - begun_at
        hosts.check_answered()
        await hosts.near.wait_durable(num_before + session.num_blocks)
        await hosts.wait_settled()
        return await self._all_here(session, {FAR: session.num_blocks}, transfer_s)

    async def _far_session(self) -> Session:
        """One whose history the far host has on its disk, and no other host."""
        session = self._hosts.session(self._history_tokens)
        await self._hosts.store(self._hosts.far, session)
        return session

    async def _come(self, session: Session) -> tuple[Seen, list[KvStage]]:
        trace, asked = await self._hosts.come(session, self._new_tokens, {FAR: session.num_blocks})
        await self._hosts.wait_settled()
        self._hosts.check_answered()
        if not (trace.cached_tokens or self._can_be_computed):
            raise PeerUnavailable("a turn computed all of its history, which another host has")
        return Seen(trace.ttft_ms, trace.cached_tokens), asked

    async def _all_here(
        self, session: Session, kv_at: dict[HostId, int], transfer_s: float = 0.0
    ) -> Seen:
        """A turn whose history is in the pool: it asks no kvstore, and computes none of it."""
        trace, asked = await self._hosts.come(session, self._new_tokens, kv_at)
        missing = session.num_blocks * BLOCK_TOKENS - trace.cached_tokens
        if asked or missing > 0:
            raise PeerUnavailable(
                f"a history was not in the pool: {max(missing, 0)} tokens of it were computed, the"
                f" kvstore was asked {len(asked)} times"
            )
        await self._hosts.wait_settled()
        return Seen(trace.ttft_ms, trace.cached_tokens, transfer_s)

    async def _again(self, once: Callable[[], Awaitable[Seen]]) -> Seen:
        """Run a turn, with another session if the far host did not answer."""
        for number in range(TRIES_MAX):
            try:
                return await once()
            except NotAsked:
                self.num_void += 1
                await asyncio.sleep(AVOIDED_S * 2**number)
        raise PeerUnavailable(f"the far host's kvstore did not answer {TRIES_MAX} turns in time")
