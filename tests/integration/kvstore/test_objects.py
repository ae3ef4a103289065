"""Kvstores over a real server of S3, and real NATS, Redis and LMDB: history outlives its host."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.kvstore.core import Run, run_of
from services.kvstore.core.base import backoff
from services.kvstore.peers import peering
from services.kvstore.tiers.objects import store
from services.kvstore.tiers.objects.packed import Indexes
from services.kvstore.tiers.objects.store import Bucket
from services.kvstore.tiers.values import HEADER_BYTES
from shared.arena import PageState
from shared.blocks import BLOCK_TOKENS, BlockKey
from shared.errors import ConfigError, SymphonyError
from shared.ids import HostId, SessionId
from shared.locations import (
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    location_redis_key,
    objects_of,
)
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages import unpack_ints
from tests.conftest import Server
from tests.integration.harness import connected, eventually
from tests.integration.kvstore.cluster import (
    NUM_LAYERS,
    PAGE_BYTES,
    TENANT,
    FakeWorker,
    Place,
    kvstore,
    owner_of,
    redis_at,
    sequence,
    until,
)
from tests.integration.kvstore.relay import Relay, relay
from tests.integration.kvstore.s3_server import NoServer, S3Server, s3_server

H1, H2 = HostId("h1"), HostId("h2")
S_OF_0 = SessionId("of-0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with s3_server(tmp_path_factory.mktemp("s3") / "s3.log") as started:
            yield started
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def url(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder of its own for each test."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(peering, "LOCATE_MIN_S", 30.0)
    monkeypatch.setattr(peering, "LOCATE_MAX_S", 30.0)
    return f"{server.url}/{abs(hash(request.node.name))}"


@pytest.fixture
def bucket(url: str) -> Bucket:
    return Bucket(url)


@pytest.fixture
def places(url: str, nats_server: Server, redis_server: Server, tmp_path: Path) -> list[Place]:
    """Two hosts that know one bucket, and not each other."""
    settings: dict[str, Any] = {"objects_url": url, "objects_rest_s": 0.0}
    return [
        Place(nats_server, redis_server, tmp_path / host_id, dict(settings), host_id)
        for host_id in (H1, H2)
    ]


@asynccontextmanager
async def host(place: Place) -> AsyncIterator[FakeWorker]:
    """A kvstore and a worker, ready."""
    async with connected(place.nats.url, "workers") as bus, kvstore(place):
        worker = FakeWorker(bus, f"w-{place.host_id}", place.host_id)
        await worker.open()
        try:
            yield worker
        finally:
            worker.close()


@asynccontextmanager
async def slow_store(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    """Kvstores that start now reach the object store through a relay; `bucket` does not. They wait
    for it for as long as the test wants.
    """
    monkeypatch.setattr(store, "REQUEST_S", 600.0)
    monkeypatch.setattr("services.kvstore.performer.SETTLE_TIMEOUT_S", 60.0)
    port = urlsplit(server.environment["AWS_ENDPOINT_URL"]).port
    assert port is not None
    async with relay(port) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.address)
        yield made


def runs_in(bucket: Bucket) -> list[Run]:
    found = [run_of(item.name) for page in bucket.walk() for item in page]
    assert None not in found
    return sorted((run for run in found if run), key=lambda run: run.depth)


async def saved(bucket: Bucket, num_blocks: int) -> list[Run]:
    """Once so many are there."""

    async def is_there() -> bool:
        return sum(run.num_blocks for run in runs_in(bucket)) >= num_blocks

    await until(is_there)
    return runs_in(bucket)


async def reported(place: Place, num_blocks: int) -> None:
    """Once Redis knows that the session's first blocks are in the object store."""
    async with redis_at(place) as redis:

        async def is_told() -> bool:
            lives = decode_lives(await redis.hgetall(KV_HOSTS_KEY))
            said = await redis.hgetall(location_redis_key(owner_of(0)))
            return decode_locations(said, lives).get(objects_of(H1)) == num_blocks

        await until(is_told)


async def listed(worker: FakeWorker, bucket: Bucket) -> None:
    """Once its host knows all that is there."""
    num_bytes = sum(item.num_bytes for page in bucket.walk() for item in page)

    async def is_listed() -> bool:
        return (await worker.stats()).objects_bytes == num_bytes

    await until(is_listed)


async def stage(
    worker: FakeWorker, keys: list[BlockKey], num_said: int, num_before: int = 0
) -> m.KvStaged:
    """A turn of session 0, of which the first host is said to have written so many blocks."""
    message = m.KvStage(
        worker_id=worker.worker_id, incarnation=worker.incarnation, fingerprint="model-a",
        num_layers=NUM_LAYERS, page_bytes=PAGE_BYTES, keys="".join(key.hex() for key in keys),
        session_id=S_OF_0, tenant=TENANT, kv_at={objects_of(H1): num_said}, num_before=num_before,
    )  # fmt: skip
    return await worker.bus.request(subjects.KV_STAGE, message, worker.host_id)


async def delete(worker: FakeWorker, timeout_s: float = 5.0) -> m.KvDeleted:
    message = m.KvDelete(session_id=S_OF_0, tenant=TENANT)
    return await worker.bus.request(subjects.SESSION_DELETE, message, timeout_s=timeout_s)


def states(worker: FakeWorker, staged: m.KvStaged) -> set[PageState]:
    """Of the pages that a stage promised."""
    pages, generations = unpack_ints(staged.pages), unpack_ints(staged.generations)
    return {worker.arena.promise(*page) for page in zip(pages, generations, strict=True)}


def test_a_session_outlives_its_host(places: list[Place], bucket: Bucket) -> None:
    async def scenario() -> None:
        async with host(places[0]) as one:
            keys = await one.store(5)
            (run,) = await saved(bucket, 5)
            assert (run.depth, run.num_blocks, run.owner) == (0, 5, owner_of(0))
            await reported(places[0], 5)
        async with host(places[1]) as two:
            staged = await stage(two, keys, 5)
            assert (staged.num_blocks, staged.num_pages_loading) == (5, 5 * NUM_LAYERS)
            await two.assert_holds(staged, keys)

            async def has_moved() -> bool:
                return (await two.stats()).disk_blocks == 5

            await until(has_moved)

    asyncio.run(scenario())


def test_what_came_from_there_is_not_written_there_again(
    places: list[Place], bucket: Bucket
) -> None:
    async def scenario() -> None:
        async with host(places[0]) as one:
            keys = await one.store(3)
            await saved(bucket, 3)
        tokens, all_keys = sequence(4)
        async with host(places[1]) as two:
            staged = await stage(two, keys, 3)
            await two.assert_holds(staged, keys)
            pages = await two.lease(NUM_LAYERS)
            await two.commit(
                tokens[3 * BLOCK_TOKENS :], all_keys[3:], pages, owner_of(0), all_keys[2]
            )
            first, second = await saved(bucket, 4)
            assert (first.host_id, first.depth, first.num_blocks) == (H1, 0, 3)
            assert (second.host_id, second.depth, second.num_blocks) == (H2, 3, 1)
        async with host(places[0]) as one:
            staged = await stage(one, all_keys, 4)
            assert (staged.num_blocks, staged.num_pages_loading) == (4, 4 * NUM_LAYERS)
            await one.assert_holds(staged, all_keys)

    asyncio.run(scenario())


def test_an_own_earlier_life_is_known(places: list[Place], bucket: Bucket) -> None:
    """The host's disk is gone, and so is Redis; nothing is written twice."""

    async def scenario() -> None:
        async with host(places[0]) as one:
            keys = await one.store(2)
            await saved(bucket, 2)
        async with host(places[0]) as one:
            await reported(places[0], 2)
            assert (await stage(one, keys, 0)).num_blocks == 2
        for path in places[0].config.disk_path.iterdir():
            path.unlink()
        async with redis_at(places[0]) as redis:
            await redis.flushall()
        async with host(places[0]) as one:
            await reported(places[0], 2)
            staged = await stage(one, keys, 0)
            assert staged.num_pages_loading == 2 * NUM_LAYERS
            await one.assert_holds(staged, keys)
        assert len(runs_in(bucket)) == 1

    asyncio.run(scenario())


def test_a_deletion_leaves_nothing_whoever_wrote_it(places: list[Place], bucket: Bucket) -> None:
    async def scenario() -> None:
        async with host(places[0]) as one:
            await one.store(2)
            await saved(bucket, 2)
        async with host(places[1]) as two:
            await two.store(2, seed=1)
            await saved(bucket, 4)
            await delete(two)
            assert [run.owner for run in runs_in(bucket)] == [owner_of(1)]

    asyncio.run(scenario())


def test_a_deletion_fails_while_the_object_store_is_away(
    server: S3Server, places: list[Place], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made good by the next one; serving goes on meanwhile."""

    async def scenario() -> None:
        async with host(places[0]) as one:
            await one.store(2)
            await saved(bucket, 2)
            monkeypatch.setattr("services.kvstore.performer.SETTLE_TIMEOUT_S", 0.2)
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                with pytest.raises(SymphonyError, match="not everything was deleted in time"):
                    await delete(one)
                await one.store(2, seed=3)
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            monkeypatch.setattr("services.kvstore.performer.SETTLE_TIMEOUT_S", 30.0)
            await delete(one)
            assert owner_of(0) not in {run.owner for run in runs_in(bucket)}

    asyncio.run(scenario())


def test_damaged_cut_and_missing_objects_are_computed(places: list[Place], bucket: Bucket) -> None:
    async def scenario() -> None:
        async with host(places[0]) as one:
            keys = await one.store(3)
            (run,) = await saved(bucket, 3)
        whole = bytes(bucket.get(run.name, 0, 1 << 30))
        value_bytes = len(whole) // run.num_pages
        damaged = bytearray(whole)
        damaged[run.place(1, 2) * value_bytes + 600] ^= 1
        async with host(places[1]) as two:
            for data, bad in (
                (damaged, {run.place(1, 2)}),
                (whole[:-value_bytes], {run.place(NUM_LAYERS - 1, 2)}),
                (None, set(range(run.num_pages))),
            ):
                bucket.delete([run.name])
                if data is not None:
                    bucket.put(run.name, data)
                staged = await stage(two, keys, 3)
                if data is None:
                    assert staged.num_blocks == 0
                    continue
                states = [two.arena.promise(*page) for page in await two.arrived(staged)]
                assert {at for at, s in enumerate(states) if s is PageState.BAD} >= bad
                assert states[0] is PageState.READY
                await two.release(staged.ticket)
                await delete_all_blocks(two, keys)

    asyncio.run(scenario())


def test_runs_of_both_kinds_are_read_and_what_is_damaged_costs_itself(
    places: list[Place], bucket: Bucket
) -> None:
    """The first host writes packed runs, and others as before it was set to."""
    tokens, keys = sequence(5)

    async def write(num_before: int, num: int) -> None:
        before = keys[num_before - 1 : num_before]
        async with host(places[0]) as one:
            pages = await one.lease(num * NUM_LAYERS)
            await one.commit(
                tokens[num_before * BLOCK_TOKENS : (num_before + num) * BLOCK_TOKENS],
                keys[num_before : num_before + num], pages, owner_of(0),
                parent=before[0] if before else None,
            )  # fmt: skip
            await saved(bucket, num_before + num)

    async def scenario() -> None:
        await write(0, 2)
        places[0].settings["objects_compression"] = "zstd"
        await write(2, 3)
        plain, packed = runs_in(bucket)
        assert (plain.is_packed, packed.is_packed) == (False, True)
        whole = bytes(bucket.get(packed.name, 0, 1 << 30))
        value_bytes = HEADER_BYTES + PAGE_BYTES
        assert len(whole) < packed.num_pages * value_bytes
        async with host(places[1]) as two:
            staged = await stage(two, keys, 5)
            assert (staged.num_blocks, staged.num_pages_loading) == (5, 5 * NUM_LAYERS)
            await two.assert_holds(staged, keys)
            await two.release(staged.ticket)
        at = Indexes(nullcontext()).get(
            packed, lambda start, num: memoryview(whole)[start : start + num]
        )
        bad = packed.place(1, 2)
        for offset, num_good in ((at[bad] + (at[bad + 1] - at[bad]) // 2, 5 * NUM_LAYERS - 1),
                                 (3, 2 * NUM_LAYERS)):  # fmt: skip
            damaged = bytearray(whole)
            damaged[offset] ^= 1
            bucket.put(packed.name, damaged)
            shutil.rmtree(places[1].config.disk_path)
            async with host(places[1]) as two:
                staged = await stage(two, keys, 5)
                states = [two.arena.promise(*page) for page in await two.arrived(staged)]
                assert states.count(PageState.READY) == num_good

    asyncio.run(scenario())


async def delete_all_blocks(worker: FakeWorker, keys: list[BlockKey]) -> None:
    """Without deleting the session's objects."""
    message = m.KvDelete(
        session_id=SessionId("another"), tenant=TENANT, keys="".join(key.hex() for key in keys)
    )
    await worker.bus.request(subjects.SESSION_DELETE, message)


def test_who_begins_another_session_is_found_with_it(places: list[Place], bucket: Bucket) -> None:
    """Session 1 goes on where a prompt that session 0 made ends."""

    async def scenario() -> None:
        tokens, keys = sequence(4)
        async with host(places[0]) as one:
            pages = await one.lease(4 * NUM_LAYERS)
            half = 2 * NUM_LAYERS
            await one.commit(tokens[: 2 * BLOCK_TOKENS], keys[:2], pages[:half], owner_of(1))
            await one.commit(
                tokens[2 * BLOCK_TOKENS :], keys[2:], pages[half:], owner_of(0), keys[1]
            )
            runs = await saved(bucket, 4)
            assert {(run.owner, run.before) for run in runs if run.depth} == {
                (owner_of(0), owner_of(1))
            }
        async with host(places[1]) as two:
            staged = await stage(two, keys, 4)
            assert staged.num_blocks == 4
            await two.assert_holds(staged, keys)

    asyncio.run(scenario())


def test_a_host_serves_while_the_object_store_is_away(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peering, "LOCATE_MIN_S", 1.0)
    monkeypatch.setattr(backoff, "RETRY_NS", 3600 * 1_000_000_000)
    monkeypatch.setattr(backoff, "RETRY_MAX_NS", 3600 * 1_000_000_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    async def scenario() -> None:
        async with host(places[0]) as one:
            keys = await one.store(2)
            assert (await stage(one, keys, 2)).num_blocks == 2
            _, more = sequence(3, seed=4)
            assert (await stage(one, more, 3)).num_blocks == 0

    asyncio.run(scenario())


def test_nobody_else_waits_for_a_slow_object_store(
    server: S3Server, places: list[Place], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing until all others are done: one session is fetched from it, and another
    written to it, while new KV goes to the disk, and history comes from there and from a peer.
    """
    monkeypatch.setattr(peering, "FETCH_S", 30.0)
    secret = places[0].directory.parent / "secret"
    secret.write_text("of the deployment\n")
    for place in places:
        place.settings["peer_secret_file"] = secret

    async def scenario() -> None:
        async with slow_store(server, monkeypatch) as slow:
            async with host(places[0]) as one:
                far = await one.store(2)
                await saved(bucket, 2)
                await delete_all_blocks(one, far)  # they are in the bucket alone
                own = await one.store(2, seed=1)
                await saved(bucket, 4)
            async with host(places[0]) as one:
                await listed(one, bucket)
                async with host(places[1]) as two:
                    others = await two.store(2, seed=2)
                    await saved(bucket, 6)
                    with slow.holding():
                        first, behind = [await stage(one, far[:num], 2) for num in (1, 2)]
                        assert behind.num_pages_loading == 2 * NUM_LAYERS
                        await eventually(lambda: slow.holds("GET", "of-the-house"))
                        await one.store(2, seed=3)
                        await eventually(lambda: slow.holds("PUT"))
                        await one.store(2, seed=4)
                        for number, keys, host_id in ((1, own, H1), (2, others, H2)):
                            session_id = SessionId(f"of-{number}")
                            kv_at = {host_id: 2, objects_of(host_id): 2}
                            staged = await one.stage(keys, session_id, kv_at)
                            assert staged.num_pages_loading == 2 * NUM_LAYERS
                            await one.assert_holds(staged, keys)
                        assert states(one, behind) == {PageState.FILLING}
                    await one.assert_holds(first, far[:1])
                    await one.assert_holds(behind, far)
                    await saved(bucket, 10)

    asyncio.run(scenario())


def test_only_the_answer_to_a_deletion_waits_for_a_slow_object_store(
    server: S3Server, places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this host wrote there: another one that is gone may have written more."""
    places[0].settings["objects_rest_s"] = 3600.0

    async def scenario() -> None:
        async with slow_store(server, monkeypatch) as slow, host(places[0]) as one:
            keys = await one.store(2)
            with slow.holding():
                deletion = asyncio.create_task(delete(one, timeout_s=60.0))

                async def is_gone() -> bool:
                    return not (await one.stats()).disk_blocks

                await until(is_gone)
                await eventually(lambda: slow.holds("GET", owner_of(0).hex()))
                assert not (await one.stage(keys)).num_blocks
                await one.store(2, seed=1)
                assert not deletion.done()
            assert (await deletion).num_blocks == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("said", ["nowhere", "http://x/y", "s3://"])
def test_an_address_that_is_none_is_refused(places: list[Place], said: str) -> None:
    places[0].settings["objects_url"] = said

    async def scenario() -> None:
        async with kvstore(places[0]):
            pass

    with pytest.raises(ConfigError, match="SYMPHONY_OBJECTS_URL"):
        asyncio.run(scenario())
