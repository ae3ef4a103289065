"""Kvstores on hosts of their own, with links between them that are slow, are cut, and come back.

Each is a process in a network namespace. What services send each other (NATS) goes by other links,
which hold: a host that can be asked and gives nothing is the worse case.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.base.children import free_port, start_child, start_nats_by, stop_child
from loadtest.bench.lab import Lab
from loadtest.servers import wait_for_port
from services.kvstore.tiers.values import HEADER_BYTES
from shared.arena import PageState, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey
from shared.bus import Bus
from shared.errors import InvalidRequest
from shared.ids import HostId, SessionId
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages.codec import unpack_ints
from tests.integration.harness import connected, eventually
from tests.integration.kvstore.cluster import (
    NUM_LAYERS,
    PAGE_BYTES,
    FakeWorker,
    page_of,
    until,
)
from tests.integration.kvstore.namespaces import Link, Namespace, join, namespaces

NEAR, FAR, SLOW = HostId("near"), HostId("far"), HostId("slow")
FAST_GBIT = 1.0
IN_TRANSFER_GBIT = 0.004  # a session takes two seconds
SLOW_GBIT = 0.001
NUM_BLOCKS = 40
NUM_PAGES = NUM_BLOCKS * NUM_LAYERS
NUM_BEFORE_CUT = 48  # pages, more than the bucket lets through at once
ON_LINK_BYTES = HEADER_BYTES + PAGE_BYTES  # of a page
OVERHEAD = 1.2  # of requests, of packets, and of what was on its way when the link was cut
# Computing a history takes a second, fetching it over a fast link a part of that.
PROFILE: dict[str, Any] = {
    "name": "slow", "base_ms": 1.0, "prefill_ms_per_token": 1.0, "decode_ms_per_turn": 0.1,
    "num_layers": 2, "kv_bytes_per_token": 1024, "max_model_len": 4096,
}  # fmt: skip
HISTORY_TOKENS = 1024
REPLY_TOKENS = 16


@dataclass(frozen=True)
class Cluster:
    """Three hosts; the test is on the near one.

    Attributes:
        near, away: namespaces, of the near host and of the far one.
        far, slow: the near host's links to the others.
        env: of a service, by host.
    """

    folder: Path
    url: str
    near: Namespace
    away: Namespace
    far: Link
    slow: Link
    env: dict[HostId, dict[str, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("only root makes network namespaces")
    folder = tmp_path_factory.mktemp("links")
    secret = folder / "secret"
    secret.write_text("of the deployment")
    with ExitStack() as stack:
        try:
            near, far, slow = stack.enter_context(namespaces(NEAR, FAR, SLOW))
            to_far, to_slow = join(near, far, 0), join(near, slow, 1)
            joined = [join(near, each, number) for number, each in ((2, far), (3, slow))]
            to_far.shape(FAST_GBIT)
        except InvalidRequest as error:
            pytest.skip(error.message)
        with near.entered():
            port = free_port()
            config = folder / "nats.conf"
            config.write_text(f"listen: 0.0.0.0:{port}\n")  # of the deployment's network
            nats = start_nats_by(config, log_path=folder / "nats.log")
            stack.callback(stop_child, nats)
            wait_for_port(nats, port, "nats")
        envs = dict[HostId, dict[str, str]]()
        for space, host_id, nats_host, listen in (
            (near, NEAR, "127.0.0.1", "127.0.0.1"),
            (far, FAR, joined[0].near_host, to_far.host),
            (slow, SLOW, joined[1].near_host, to_slow.host),
        ):
            env = envs[host_id] = {
                **os.environ,
                "SYMPHONY_NATS_URL": f"nats://{nats_host}:{port}",
                "SYMPHONY_REDIS_URL": "redis://127.0.0.1:1/0",  # none is there: they do without
                "SYMPHONY_HOST_ID": host_id,
                "SYMPHONY_DATA_DIR": str(folder / host_id),
                "SYMPHONY_ARENA_DIR": str(folder / f"{host_id}-arena"),
                "SYMPHONY_ARENA_BYTES": str(16 * 1024**2),
                "SYMPHONY_DISK_BYTES_MAX": str(64 * 1024**2),
                "SYMPHONY_PEER_SECRET_FILE": str(secret),
                "SYMPHONY_PEER_LISTEN": f"{listen}:0",
            }
            with space.entered():
                command = [sys.executable, "-m", "services.kvstore"]
                log_path = folder / f"{host_id}.log"
                stack.callback(stop_child, start_child(command, log_path=log_path, env=env))
        yield Cluster(folder, f"nats://127.0.0.1:{port}", near, far, to_far, to_slow, envs)


@asynccontextmanager
async def workers(cluster: Cluster, *host_ids: HostId) -> AsyncIterator[list[FakeWorker]]:
    """One on each of these hosts, once their kvstores are there."""
    async with connected(cluster.url, "workers") as bus:
        made = [FakeWorker(bus, f"w-{host_id}", host_id) for host_id in host_ids]

        async def are_there() -> bool:
            found: set[str] = set()

            def are_all(replies: list[m.KvStats]) -> bool:
                found.update(reply.host_id for reply in replies)
                return found >= set(host_ids)

            stats = subjects.KV_STATS
            await bus.gather(stats, m.Empty(), timeout_s=0.5, until=are_all)
            return found >= set(host_ids)

        await until(are_there, 60.0)
        for worker in made:
            await worker.open()
        try:
            yield made
        finally:
            for worker in made:
                worker.close()


@dataclass
class Staged:
    """A session that is staged on the near host.

    Attributes:
        ticket: of the stage.
        num_to_come: pages that were not in the arena.
        pages: page and generation, layer by layer.
    """

    worker: FakeWorker
    keys: list[BlockKey]
    ticket: int
    num_to_come: int
    pages: list[tuple[int, int]]

    def states(self) -> list[PageState]:
        return [self.worker.arena.promise(*each) for each in self.pages]

    @property
    def num_ready(self) -> int:
        return self.states().count(PageState.READY)

    @property
    def is_over(self) -> bool:
        return PageState.FILLING not in self.states()

    def check(self) -> None:
        """What is said to be there is what was computed."""
        for slot, state in enumerate(self.states()):
            layer, index = divmod(slot, len(self.keys))
            if state is PageState.READY:
                found = self.worker.arena.pages[self.pages[slot][0]]
                assert np.array_equal(found, page_of(self.keys[index], layer))


async def stage(worker: FakeWorker, keys: list[BlockKey], host_id: HostId) -> Staged:
    """As soon as that host is asked again and answers in time."""
    found: list[m.KvStaged] = []

    async def is_offered() -> bool:
        staged = await worker.stage(keys, kv_at={host_id: len(keys)})
        if staged.num_blocks == len(keys):
            found.append(staged)
        else:
            await worker.release(staged.ticket)
        return bool(found)

    await until(is_offered, 30.0)
    (staged,) = found
    pages = zip(unpack_ints(staged.pages), unpack_ints(staged.generations), strict=True)
    return Staged(worker, keys, staged.ticket, staged.num_pages_loading, list(pages))


@contextmanager
def counted(link: Link) -> Iterator[list[int]]:
    """Bytes that came over a link to this host while the body ran: one number, afterwards."""
    count: list[int] = []
    before = _received_bytes(link)
    yield count
    count.append(_received_bytes(link) - before)


def _received_bytes(link: Link) -> int:
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == link.device:
            return int(numbers.split()[0])
    raise AssertionError("there is such a link")


def _is_connecting(link: Link) -> bool:
    """Whether a client on this host waits for the first answer of the other side."""
    return bool(_ports(link, "02"))


def _connections(link: Link) -> set[str]:
    """This host's ends of connections to the other side."""
    return _ports(link, "01")


def _ports(link: Link, state: str) -> set[str]:
    """Of sockets that talk to the other side and are in this state of TCP."""
    far = "".join(f"{int(part):02X}" for part in reversed(link.host.split(".")))
    lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    sockets = [line.split()[1:4] for line in lines]
    return {own for own, other, found in sockets if other.startswith(far) and found == state}


async def cut_in_transfer(cluster: Cluster, staged: Staged) -> None:
    await eventually(lambda: staged.num_ready >= NUM_BEFORE_CUT)
    cluster.far.cut()
    assert not staged.is_over, "the link was cut too late"


def test_of_a_fetch_that_a_cut_ends_only_whole_pages_are_served_and_none_is_fetched_again(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        async with workers(cluster, NEAR, FAR) as (near, far):
            keys = await far.store(NUM_BLOCKS, seed=1)
            cluster.far.shape(IN_TRANSFER_GBIT)
            staged = await stage(near, keys, FAR)
            assert staged.num_to_come == NUM_PAGES
            await cut_in_transfer(cluster, staged)
            await eventually(lambda: staged.is_over, 30.0)  # with the link as dead as it was
            num_come = staged.num_ready
            assert NUM_BEFORE_CUT <= num_come < NUM_PAGES
            staged.check()
            known = {checksum(page_of(key, at).data) for key in keys for at in range(NUM_LAYERS)}
            published = np.flatnonzero(near.arena.words & np.uint64(0xFF) == PageState.READY)
            assert {checksum(near.arena.pages[page].data) for page in published} <= known
            await near.release(staged.ticket)
            cluster.far.shape(FAST_GBIT)
            with counted(cluster.far) as num_bytes:
                cluster.far.mend()
                again = await stage(near, keys, FAR)
                await eventually(lambda: again.is_over)
            assert again.num_ready == NUM_PAGES
            again.check()
            assert again.num_to_come == NUM_PAGES - num_come
            assert num_bytes[0] < (NUM_PAGES - num_come) * ON_LINK_BYTES * OVERHEAD
            await near.release(again.ticket)

    with cluster.near.entered():
        asyncio.run(scenario())


def test_a_link_that_is_back_in_time_ends_what_it_began(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with workers(cluster, NEAR, FAR) as (near, far):
            keys = await far.store(NUM_BLOCKS, seed=2)
            cluster.far.shape(IN_TRANSFER_GBIT)
            with counted(cluster.far) as num_bytes:
                staged = await stage(near, keys, FAR)
                await cut_in_transfer(cluster, staged)
                await eventually(lambda: _is_connecting(cluster.far))
                cluster.far.shape(FAST_GBIT)
                cluster.far.mend()
                await eventually(lambda: staged.is_over)
            assert staged.num_ready == NUM_PAGES
            staged.check()
            assert num_bytes[0] < NUM_PAGES * ON_LINK_BYTES * OVERHEAD
            await near.release(staged.ticket)

    with cluster.near.entered():
        asyncio.run(scenario())


def test_a_fetch_by_one_link_does_not_wait_for_another(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with workers(cluster, NEAR, FAR, SLOW) as (near, far, slow):
            keys_there = await slow.store(NUM_BLOCKS, seed=3)
            keys = await far.store(4, seed=4)
            cluster.slow.shape(SLOW_GBIT)
            behind = await stage(near, keys_there, SLOW)
            await eventually(lambda: behind.num_ready > 0)
            before = _connections(cluster.slow)
            staged = await stage(near, keys, FAR)
            await eventually(lambda: staged.is_over)
            assert staged.num_ready == 4 * NUM_LAYERS
            assert not behind.is_over and _connections(cluster.slow) == before != set()
            staged.check()
            for each in (staged, behind):
                await near.release(each.ticket)

    with cluster.near.entered():
        asyncio.run(scenario())


async def open_lab(cluster: Cluster, space: Namespace, host_id: HostId, bus: Bus) -> Lab:
    """A worker beside this host's kvstore, with this test as its scheduler and frontend."""
    directory = cluster.folder / f"{host_id}-lab"
    directory.mkdir()
    profile = directory / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    settings = {
        "SYMPHONY_EMULATE": str(profile),
        "SYMPHONY_TRUE_PAGES": "true",
        "SYMPHONY_KV_BYTES": str(8 * 1024**2),
    }
    lab = Lab(directory, bus, cluster.env[host_id] | settings, host_id)
    await lab.listen()
    with space.entered():
        await lab.start("worker")
    await lab.wait_connected()
    return lab


def test_a_turn_whose_history_a_cut_stops_is_answered_to_its_end(cluster: Cluster) -> None:
    tokens = [number % 251 for number in range(HISTORY_TOKENS)]
    num_blocks = HISTORY_TOKENS // BLOCK_TOKENS

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(connected(cluster.url, "labs"))
            labs = []
            for space, host_id in ((cluster.away, FAR), (cluster.near, NEAR)):
                labs.append(await open_lab(cluster, space, host_id, bus))
                stack.callback(labs[-1].close)
            far, near = labs
            num_before = (await far.kv_stats()).disk_blocks
            await far.turn(tokens, session_id=SessionId("s"))
            await far.wait_durable(num_before + num_blocks)
            stack.callback(cluster.far.mend)
            cluster.far.shape(IN_TRANSFER_GBIT)
            before = _received_bytes(cluster.far)
            trace, task = near.begin(
                [*tokens, 1, 2, 3], REPLY_TOKENS, session_id=SessionId("s"), kv_at={FAR: num_blocks}
            )
            half = HISTORY_TOKENS * PROFILE["kv_bytes_per_token"] // 2
            await eventually(lambda: _received_bytes(cluster.far) - before > half)
            cluster.far.cut()
            assert not trace.generated, "the link was cut too late"
            await asyncio.wait_for(task, 30.0)
            assert len(trace.generated) == REPLY_TOKENS
            assert trace.cached_tokens < HISTORY_TOKENS

    with cluster.near.entered():
        asyncio.run(scenario())
