"""A worker that has sessions brought up, one after the other, as the kvstore sees it."""

import asyncio
import fcntl
import os
import random
import time
from pathlib import Path

import numpy as np

from loadtest.bench.scale.filling import PAGE_BYTES
from loadtest.bench.scale.host import HOST_ID, ScaleHost
from loadtest.bench.scale.sessions import FINGERPRINT, Sessions
from shared.arena import Arena, PageState
from shared.blocks import pack_keys
from shared.errors import PeerUnavailable
from shared.ids import WorkerId
from shared.wire.messages import KvOpen, KvRelease, KvStage, unpack_ints
from shared.wire.subjects import KV_OPEN, KV_RELEASE, KV_STAGE

WORKER, INCARNATION = WorkerId("scale"), "1"
PAGES_LIMIT_S = 30.0
SEED = 1


async def stage(host: ScaleHost, sessions: Sessions, num: int) -> list[float]:
    """So many sessions, at random; seconds that each took until all its pages were there."""
    opened = await host.bus.request(
        KV_OPEN,
        KvOpen(
            worker_id=WORKER, incarnation=INCARNATION, fingerprint=FINGERPRINT,
            num_layers=sessions.num_layers, page_bytes=PAGE_BYTES,
        ),
        HOST_ID,
        timeout_s=PAGES_LIMIT_S,
    )  # fmt: skip
    lease = os.open(opened.lease_path, os.O_RDWR | os.O_CLOEXEC)
    arena = Arena.attach(Path(opened.arena_path))
    try:
        fcntl.flock(lease, fcntl.LOCK_EX)
        numbers = random.Random(SEED).sample(range(sessions.num), min(num, sessions.num))
        return [await _stage_one(host, sessions, arena, number) for number in numbers]
    finally:
        os.close(lease)
        arena.close()


async def _stage_one(host: ScaleHost, sessions: Sessions, arena: Arena, number: int) -> float:
    began_s = time.monotonic()
    question = KvStage(
        worker_id=WORKER, incarnation=INCARNATION, fingerprint=FINGERPRINT,
        num_layers=sessions.num_layers, page_bytes=PAGE_BYTES,
        keys=pack_keys(sessions.keys(number)),
    )  # fmt: skip
    staged = await host.bus.request(KV_STAGE, question, HOST_ID, timeout_s=PAGES_LIMIT_S)
    if staged.num_blocks != sessions.num_blocks:
        raise PeerUnavailable(f"{staged.num_blocks} of {sessions.num_blocks} blocks were staged")
    pages, generations = unpack_ints(staged.pages), unpack_ints(staged.generations)
    while (states := arena.promises(pages, generations)).min() < PageState.READY:
        if time.monotonic() - began_s > PAGES_LIMIT_S:
            raise PeerUnavailable("pages did not come")
        await asyncio.sleep(0)
    if np.any(states != PageState.READY):
        raise PeerUnavailable("pages were not what was stored")
    took_s = time.monotonic() - began_s
    release = KvRelease(worker_id=WORKER, incarnation=INCARNATION, ticket=staged.ticket)
    await host.bus.publish(KV_RELEASE, release, HOST_ID)
    return took_s
