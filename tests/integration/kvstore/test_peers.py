"""Two hosts' kvstores over real NATS, Redis, LMDB and TCP: history comes from where it is."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.kvstore.core import DiskWrite
from services.kvstore.core.base import backoff
from services.kvstore.peers import peering
from services.kvstore.tiers.disk import Reader, StoredPage, Writer
from shared.arena import Bytes, PageState
from shared.blocks import BLOCK_TOKENS, BlockKey, pack_keys, unpack_keys
from shared.errors import ConfigError
from shared.ids import HostId, SessionId
from shared.locations import ANYWHERE
from shared.wire import messages as m
from shared.wire import subjects
from tests.certificates import make_certificate
from tests.conftest import Server
from tests.integration.harness import connected
from tests.integration.kvstore.cluster import (
    NUM_LAYERS,
    PAGE_BYTES,
    TENANT,
    FakeWorker,
    Place,
    flip_byte,
    kvstore,
    owner_of,
    redis_at,
    save_session,
    sequence,
    until,
)

H1, H2 = HostId("h1"), HostId("h2")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stalls for a while is no less a peer; who failed does not come back soon."""
    monkeypatch.setattr(peering, "LOCATE_MIN_S", 30.0)
    monkeypatch.setattr(peering, "LOCATE_MAX_S", 30.0)
    monkeypatch.setattr(peering, "FETCH_S", 30.0)
    monkeypatch.setattr(backoff, "RETRY_NS", 3600 * 1_000_000_000)
    monkeypatch.setattr(backoff, "RETRY_MAX_NS", 3600 * 1_000_000_000)


@pytest.fixture
def places(nats_server: Server, redis_server: Server, tmp_path: Path) -> list[Place]:
    """Two hosts that know one secret."""
    secret = tmp_path / "secret"
    secret.write_text("of the deployment\n")
    settings = {"peer_secret_file": secret}
    return [
        Place(nats_server, redis_server, tmp_path / host_id, dict(settings), host_id)
        for host_id in (H1, H2)
    ]


@asynccontextmanager
async def two_workers(places: list[Place]) -> AsyncIterator[list[FakeWorker]]:
    """One on each host."""
    async with connected(places[0].nats.url, "workers") as bus:
        workers = [FakeWorker(bus, f"w-{place.host_id}", place.host_id) for place in places]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.close()


async def on_disk(worker: FakeWorker, num_blocks: int) -> None:
    async def is_there() -> bool:
        return (await worker.stats()).disk_blocks == num_blocks

    await until(is_there)


@asynccontextmanager
async def two_hosts(places: list[Place]) -> AsyncIterator[list[FakeWorker]]:
    """A kvstore and a worker on each, ready."""
    async with two_workers(places) as workers, kvstore(places[0]), kvstore(places[1]):
        for worker in workers:
            await worker.open()
        yield workers


async def are_lost(worker: FakeWorker, staged: m.KvStaged) -> None:
    """Workers that wait for these pages see that they will not come."""
    states = {worker.arena.promise(*page) for page in await worker.arrived(staged)}
    assert states == {PageState.BAD}


def test_history_moves_to_the_host_where_its_turn_is(places: list[Place]) -> None:
    async def scenario() -> None:
        async with two_workers(places) as (one, two):
            async with kvstore(places[0]), kvstore(places[1]):
                await one.open()
                await two.open()
                keys = await one.store(5)
                staged = await two.stage(keys, kv_at={H1: 5})
                assert (staged.num_blocks, staged.num_pages_loading) == (5, 5 * NUM_LAYERS)
                await two.assert_holds(staged, keys)
                await on_disk(two, 5)
                assert (await two.stage(keys)).num_pages_loading == 0
            async with kvstore(places[1]):
                await two.open()
                staged = await two.stage(keys, kv_at={H1: 5})
                assert (staged.num_blocks, staged.num_pages_loading) == (5, 5 * NUM_LAYERS)
                await two.assert_holds(staged, keys)

    asyncio.run(scenario())


def test_an_expected_sessions_history_comes_by_its_name(places: list[Place]) -> None:
    async def scenario() -> None:
        async with two_hosts(places) as (one, two), redis_at(places[0]) as redis:
            keys = await one.store(3)
            await save_session(redis, SessionId("s"), keys)
            staged = await two.stage(session_id=SessionId("s"), kv_at={H1: 3})
            assert unpack_keys(staged.keys) == keys
            await two.assert_holds(staged, keys)

    asyncio.run(scenario())


def test_where_nobody_knows_who_has_it_all_are_asked(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequence is longer than what is asked of everybody, and its end is new to all."""
    monkeypatch.setattr(peering, "FIND_S", 30.0)

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            _, keys = sequence(13)
            stored = await one.store(12)
            assert stored == keys[:12]
            staged = await two.stage(keys, kv_at={ANYWHERE: 13})
            assert (staged.num_blocks, staged.num_pages_loading) == (12, 12 * NUM_LAYERS)
            await two.assert_holds(staged, keys)

    asyncio.run(scenario())


def test_who_has_none_of_it_says_nothing_when_all_are_asked(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peering, "FIND_S", 0.2)

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            stored = await one.store(2)
            _, keys = sequence(3, seed=1)
            assert (await two.stage(keys, kv_at={ANYWHERE: 3})).num_blocks == 0
            question = m.KvLocate(
                keys=pack_keys(keys), num_layers=NUM_LAYERS, page_bytes=PAGE_BYTES
            )
            assert await one.bus.gather(subjects.KV_FIND, question, timeout_s=0.2) == []
            known = m.KvLocate(keys=pack_keys(stored), num_layers=NUM_LAYERS, page_bytes=PAGE_BYTES)
            (answer,) = await one.bus.gather(subjects.KV_FIND, known, timeout_s=30.0, until=bool)
            assert (answer.host_id, answer.num_blocks) == (H1, 2)

    asyncio.run(scenario())


def test_what_this_host_has_is_not_fetched(places: list[Place]) -> None:
    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            tokens, keys = sequence(6)
            await one.store(6)
            pages = await two.lease(4 * NUM_LAYERS)
            await two.commit(tokens[: 4 * BLOCK_TOKENS], keys[:4], pages, owner_of(0))
            await on_disk(two, 4)
            staged = await two.stage(keys[1:], kv_at={H1: 6}, num_before=1)
            assert (staged.num_blocks, staged.num_pages_loading) == (5, 2 * NUM_LAYERS)
            await two.assert_holds(staged, keys[1:])
            await on_disk(two, 6)
            assert (await two.stage(keys, kv_at={H1: 4})).num_blocks == 6

    asyncio.run(scenario())


def test_nobody_is_asked_who_has_no_more_than_this_host(places: list[Place]) -> None:
    """Known by what comes: host 1 has it all, and no location says so."""

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(3)
            assert (await two.stage(keys[1:], kv_at={H1: 1}, num_before=1)).num_blocks == 0
            assert (await two.stage(keys)).num_blocks == 0
            assert (await two.stage(keys, kv_at={H2: 3, HostId("h3"): 9})).num_blocks == 0
            assert (await two.stage(keys, kv_at={H1: 1})).num_blocks == 3

    asyncio.run(scenario())


def test_what_is_not_on_disk_yet_is_sent_from_the_arena(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    put = Writer.put

    def late(writer: Writer, write: DiskWrite, pages: Bytes) -> None:
        assert may_write.wait(30)
        put(writer, write, pages)

    monkeypatch.setattr(Writer, "put", late)

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            try:
                tokens, keys = sequence(2)
                await one.commit(tokens, keys, await one.lease(2 * NUM_LAYERS), owner_of(0))
                staged = await two.stage(keys, kv_at={H1: 2})
                assert staged.num_blocks == 2
                await two.assert_holds(staged, keys)
                assert (await one.stats()).disk_blocks == 0
            finally:
                may_write.set()
            await on_disk(two, 2)

    asyncio.run(scenario())


def test_a_page_that_is_damaged_there_costs_its_block_only(places: list[Place]) -> None:
    async def scenario() -> None:
        async with two_workers(places) as (one, two):
            async with kvstore(places[0]):
                await one.open()
                keys = await one.store(3)
            flip_byte(places[0], keys[1], layer=1)
            async with kvstore(places[0]), kvstore(places[1]):
                await one.open()
                await two.open()
                staged = await two.stage(keys, kv_at={H1: 3})
                promised = await two.arrived(staged)
                bad = [at for at, each in enumerate(promised) if is_bad(two, each)]
                assert 1 * 3 + 1 in bad and {at % 3 for at in bad} == {1}
                tokens, _ = sequence(3)
                pages = await two.lease(NUM_LAYERS)
                await two.commit(
                    tokens[BLOCK_TOKENS : 2 * BLOCK_TOKENS], keys[1:2], pages, owner_of(0), keys[0]
                )
                await on_disk(two, 2)  # the third had come before what it continues was here
                again = await two.stage(keys, kv_at={H1: 3})
                await two.assert_holds(again, keys)
                await on_disk(two, 3)

    asyncio.run(scenario())


def is_bad(worker: FakeWorker, page: tuple[int, int]) -> bool:
    return worker.arena.promise(*page) is PageState.BAD


def test_a_deleted_session_comes_back_from_nowhere(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for before the deletion comes after it."""
    may_read, reads = threading.Event(), threading.Event()
    page = Reader.page

    def late(reader: Reader, key: BlockKey, layer: int) -> StoredPage | None:
        found = page(reader, key, layer)
        reads.set()
        assert may_read.wait(30)
        return found

    monkeypatch.setattr(Reader, "page", late)

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(3)
            staged = await two.stage(keys, kv_at={H1: 3})
            await asyncio.to_thread(reads.wait, 30)
            try:
                delete = m.KvDelete(session_id=SessionId("of-0"), tenant=TENANT)
                await two.bus.gather(
                    subjects.SESSION_DELETE, delete, timeout_s=10.0, until=lambda all: len(all) == 2
                )
            finally:
                may_read.set()
            await two.arrived(staged)
            await two.release(staged.ticket)
            assert (await two.stage(keys, kv_at={H1: 3})).num_blocks == 0
            assert (await two.stats()).disk_blocks == 0

    asyncio.run(scenario())


def test_a_host_that_knows_another_secret_is_no_peer(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peering, "FETCH_S", 0.5)
    other = places[1].directory.parent / "other-secret"
    other.write_text("of another deployment")
    places[1].settings["peer_secret_file"] = other

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(2)
            staged = await two.stage(keys, kv_at={H1: 2})
            assert staged.num_blocks == 2
            await are_lost(two, staged)
            await two.release(staged.ticket)
            assert (await two.stage(keys, kv_at={H1: 2})).num_blocks == 0, "it is left alone"
            assert (await two.stats()).disk_blocks == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [0, 1])
def test_without_a_secret_nothing_goes_from_host_to_host(places: list[Place], number: int) -> None:
    del places[number].settings["peer_secret_file"]

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(2)
            assert (await two.stage(keys, kv_at={H1: 2})).num_blocks == 0

    asyncio.run(scenario())


def test_pages_come_through_tls_where_there_are_certificates(
    places: list[Place], tmp_path: Path
) -> None:
    made = make_certificate(tmp_path / "tls", "IP:127.0.0.1")
    for place in places:
        place.settings |= {
            "peer_cert_file": made.cert, "peer_key_file": made.key, "peer_ca_file": made.cert,
        }  # fmt: skip

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(2)
            staged = await two.stage(keys, kv_at={H1: 2})
            await two.assert_holds(staged, keys)

    asyncio.run(scenario())


def test_hosts_reach_each_other_by_version_6_of_the_protocol(places: list[Place]) -> None:
    for place in places:
        place.settings["peer_listen"] = "[::1]:0"

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(2)
            staged = await two.stage(keys, kv_at={H1: 2})
            assert staged.num_blocks == 2
            await two.assert_holds(staged, keys)

    asyncio.run(scenario())


def test_an_address_that_can_be_none_costs_nobody_but_its_host(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever another host says."""
    monkeypatch.setattr(peering, "FETCH_S", 0.5)
    places[0].settings["peer_address"] = "nowhere.invalid:1"

    async def scenario() -> None:
        async with two_hosts(places) as (one, two):
            keys = await one.store(2)
            staged = await two.stage(keys, kv_at={H1: 2})
            await are_lost(two, staged)
            assert await two.store(2, seed=1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"peer_secret_file": Path("/nowhere/secret")}, "SYMPHONY_PEER_SECRET_FILE='/nowhere"),
        ({"peer_listen": "192.0.2.1:1"}, "SYMPHONY_PEER_LISTEN='192.0.2.1:1'"),
        (
            {f"peer_{name}_file": Path(f"/nowhere/{name}") for name in ("cert", "key", "ca")},
            "SYMPHONY_PEER_CA_FILE='/nowhere/ca'",
        ),
    ],
)
def test_what_cannot_be_so_is_said_by_its_name(
    places: list[Place], settings: dict[str, object], why: str
) -> None:
    places[0].settings |= settings

    async def scenario() -> None:
        async with kvstore(places[0]):
            pass

    with pytest.raises(ConfigError) as caught:
        asyncio.run(scenario())
    assert why in caught.value.message
