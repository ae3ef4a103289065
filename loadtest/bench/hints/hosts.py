"""Two hosts with a kvstore and a worker each, and sessions whose history the far one has."""

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.lab import Lab, Trace, open_labs
from shared.blocks import BLOCK_TOKENS, chain_keys, pack_keys, root_key
from shared.errors import PeerUnavailable
from shared.ids import DEFAULT_TENANT, HostId, ModelId, SessionId, new_id
from shared.runtime.redis_client import RedisClient
from shared.wire.messages import KvRelease, KvStage, Prefetch
from shared.wire.sessions import SessionRecord, TextMark, encode_record, session_redis_key
from shared.wire.subjects import KV_RELEASE, KV_STAGE

FAR, NEAR = HostId("far"), HostId("near")
# A worker leaves the newest blocks without a copy below when those take over a quarter of its pool.
POOL_SESSIONS = 5
ARENA_SESSIONS = 6
SPARE_BLOCKS = 4
SEED = 1
LOOK_S = 1.0
ARRIVE_TRIES = 30  # of so long
SETTLE_S = 0.3
NO_ANSWER = "a host does not say what it has"  # as a kvstore logs it
NO_TEXT = TextMark.of("")


class NotAsked(Exception):
    """The far host's kvstore did not answer in time: what was measured is another thing."""


@dataclass(frozen=True, slots=True)
class Session:
    """Attributes:
    tokens: its history.
    num_blocks: whole ones of that.
    """

    session_id: SessionId
    tokens: list[int]

    @property
    def num_blocks(self) -> int:
        return len(self.tokens) // BLOCK_TOKENS


class TwoHosts:
    """Two hosts that run. Make with `open_hosts`."""

    def __init__(self, far: Lab, near: Lab, redis: RedisClient, vocab_size: int) -> None:
        self.far = far
        self.near = near
        self._redis = redis
        self._vocab_size = vocab_size
        self._rng = random.Random(SEED)
        self._stages: list[KvStage] = []
        self._released = asyncio.Event()
        self._num_unanswered = 0

    async def listen(self) -> None:
        """Hear what the near worker asks for, and what it lets go of."""

        def on_release(release: KvRelease) -> None:
            if release.ticket and not release.num_kept:
                self._released.set()

        await self.near.hear(KV_STAGE, self._stages.append)
        await self.near.hear(KV_RELEASE, on_release)

    def tokens(self, num: int) -> list[int]:
        """That no session had before."""
        return [self._rng.randrange(self._vocab_size) for _ in range(num)]

    def session(self, num_tokens: int) -> Session:
        """With a history that is nowhere yet."""
        return Session(SessionId(new_id("s")), self.tokens(num_tokens))

    async def store(self, lab: Lab, session: Session) -> None:
        """Make a history on this host, and wait until it is on its disk and in Redis."""
        num_before = (await lab.kv_stats()).disk_blocks
        await lab.turn(session.tokens, session_id=session.session_id)
        await lab.wait_durable(num_before + session.num_blocks)
        await self._save(session)
        await self.wait_settled()

    async def hint(self, session: Session, lead_s: float) -> None:
        """Tell the near worker that the session's turn comes so soon."""
        prefetch = Prefetch(
            session_id=session.session_id,
            model_id=ModelId(self.near.card.model_id),
            arrives_in_ns=int(lead_s * 1e9),
            num_tokens=len(session.tokens),
            kv_at={FAR: session.num_blocks},
        )
        self._released.clear()
        await self.near.prefetch(prefetch)

    async def wait_arrived(self) -> None:
        """Wait until nothing is on its way any more for the last hint: the worker lets go of what
        is pinned for it when all of that is in its pool.

        Raises:
            NotAsked: the far host did not answer.
            PeerUnavailable: nothing came.
        """
        for _ in range(ARRIVE_TRIES):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), LOOK_S)
                return
            self.check_answered()
        raise PeerUnavailable("nothing came for a hint, or not all of it")

    async def wait_settled(self) -> None:
        """Wait until the near host writes and pins nothing, and the machine has nothing left to
        write: a turn beside that takes longer."""
        await wait_settled(self.near)

    async def come(
        self, session: Session, num_new: int, kv_at: dict[HostId, int]
    ) -> tuple[Trace, list[KvStage]]:
        """The session's next turn on the near host, and what of its history its kvstore was asked
        for meanwhile."""
        self._stages.clear()
        tokens = session.tokens + self.tokens(num_new)
        trace = await self.near.turn(tokens, session_id=session.session_id, kv_at=kv_at)
        asked = [each for each in self._stages if not each.is_hint]
        return trace, [each for each in asked if each.num_before < session.num_blocks]

    def check_answered(self) -> None:
        """
        Raises:
            NotAsked: since this was called last, the far host did not answer in time.
        """
        log = (self.near.directory / "kvstore.log").read_text()
        before, self._num_unanswered = self._num_unanswered, log.count(NO_ANSWER)
        if self._num_unanswered > before:
            raise NotAsked

    async def _save(self, session: Session) -> None:
        """The record that a frontend writes: by it a hint's blocks are found."""
        card = self.near.card
        keys = chain_keys(root_key(card.fingerprint, DEFAULT_TENANT), session.tokens)
        record = SessionRecord(
            session_id=session.session_id, tenant=DEFAULT_TENANT,
            model_id=ModelId(card.model_id), fingerprint=card.fingerprint,
            tokens="", block_keys=pack_keys(keys),
            prompt=NO_TEXT, reply=NO_TEXT, stripped_reply=NO_TEXT,
            num_tokens=len(session.tokens), num_turns=1, last_used=0.0, expires=0.0,
        )  # fmt: skip
        name = session_redis_key(DEFAULT_TENANT, session.session_id)
        await self._redis.set(name, encode_record(record))


async def wait_settled(lab: Lab) -> None:
    """Wait until a host writes and pins nothing, and the machine has nothing left to write."""
    before = None
    while True:
        stats = await lab.kv_stats()
        if not stats.arena_blocks_pinned and stats.disk_blocks == before:
            await asyncio.to_thread(os.sync)
            return
        before = stats.disk_blocks
        await asyncio.sleep(SETTLE_S)


def secret_path(lab: Lab) -> str:
    """Of the file with the secret that all hosts beside this one share."""
    return str(lab.directory.parent / "secret")


def make_secret(lab: Lab) -> str:
    """Make that file; its path."""
    path = Path(secret_path(lab))
    path.write_text(secrets.token_hex())
    return str(path)


@asynccontextmanager
async def open_hosts(
    settings: dict[str, str], *, session_bytes: int, vocab_size: int, link_bytes_per_s: float
) -> AsyncIterator[TwoHosts]:
    """Start everything.

    Args:
        settings: of workers: what they serve.
        session_bytes: KV of a session.
        link_bytes_per_s: that the far host gives; 0: as many as it can.
    """
    sizes = {
        "kv_bytes": str(POOL_SESSIONS * session_bytes),
        "arena_bytes": str(ARENA_SESSIONS * session_bytes),
    }
    async with open_labs(FAR, NEAR, **sizes, **settings) as (far, near):
        secret = make_secret(far)
        for lab in (far, near):
            speed = link_bytes_per_s if lab is far else 0.0
            await lab.start("kvstore", peer_secret_file=secret, peer_bytes_per_s=str(speed))
            await lab.start("worker")
            await lab.wait_connected()
        redis = RedisClient(near.redis_url, None, timeout_s=5.0)
        try:
            hosts = TwoHosts(far, near, redis, vocab_size)
            await hosts.listen()
            yield hosts
        finally:
            await redis.aclose()
