"""Adapters' files on hosts where they were not added: over real NATS, Redis, TCP and files."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.adapters import parts, pulling, saving
from shared.blocks import BlockKey
from shared.bus import Bus
from shared.errors import SymphonyError
from shared.ids import HostId, ModelId, TenantId
from shared.wire import messages as m
from shared.wire import subjects
from tests.adapters import CARD, write_adapter
from tests.conftest import Server
from tests.integration.harness import connected, eventually
from tests.integration.kvstore.cluster import FINGERPRINT, FakeWorker, Place, kvstore

HOSTS = [HostId("h1"), HostId("h2"), HostId("h3")]
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(params=[parts.PART_BYTES, 500], ids=["whole", "in parts"])
def places(
    request: pytest.FixtureRequest,
    nats_server: Server,
    redis_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Place]:
    """Three hosts that know one secret."""
    for module in (parts, pulling):
        monkeypatch.setattr(module, "PART_BYTES", request.param)
    secret = tmp_path / "secret"
    secret.write_text("of the deployment\n")
    settings = {"peer_secret_file": secret, "adapter_dirs": [tmp_path]}
    return [
        Place(nats_server, redis_server, tmp_path / host_id, dict(settings), host_id)
        for host_id in HOSTS
    ]


@dataclass
class Scene:
    bus: Bus
    places: list[Place]

    async def add(self, at: int, seed: int = 1) -> m.AdapterRecord:
        folder = write_adapter(self.places[0].directory.parent / f"a{seed}", seed)
        add = m.AdapterAdd(
            name=f"a{seed}", tenant=TenantId("t"), model_id=ModelId("base"), card=CARD,
            path=str(folder), replace=True,
        )  # fmt: skip
        return await self.bus.request(subjects.ADAPTER_ADD, add, HOSTS[at], timeout_s=20)

    async def fetch(self, at: int, adapter_hash: str) -> None:
        fetch = m.AdapterFetch(adapter_hash=adapter_hash, card=CARD)
        await self.bus.request(subjects.ADAPTER_FETCH, fetch, HOSTS[at], timeout_s=20)

    async def refused(self, at: int, adapter_hash: str) -> SymphonyError:
        with pytest.raises(SymphonyError) as caught:
            await self.fetch(at, adapter_hash)
        assert not self.hashes(at), "nothing is left of it"
        return caught.value

    def root(self, at: int) -> Path:
        return self.places[at].config.adapters_path

    def hashes(self, at: int) -> set[str]:
        return {path.name for path in self.root(at).iterdir()} - {"names"}

    def weights(self, at: int, adapter_hash: str) -> Path:
        return self.root(at) / adapter_hash / WEIGHTS

    def are_same(self, one: int, two: int, adapter_hash: str) -> bool:
        return all(
            (self.root(one) / adapter_hash / name).read_bytes()
            == (self.root(two) / adapter_hash / name).read_bytes()
            for name in ("adapter_config.json", WEIGHTS)
        )


@asynccontextmanager
async def hosts(places: list[Place], *running: int) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        for number in running:
            await stack.enter_async_context(kvstore(places[number]))
        bus = await stack.enter_async_context(connected(places[0].nats.url, "test"))
        yield Scene(bus, places)


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_a_host_fetches_what_another_was_given_and_passes_it_on(places: list[Place]) -> None:
    async def scenario() -> None:
        async with hosts(places, 1) as it:
            async with kvstore(places[0]):
                name = (await it.add(0)).adapter_hash
                await asyncio.gather(*(it.fetch(1, name) for _ in range(5)))
                assert it.are_same(0, 1, name)
                assert it.hashes(1) == {name} and not list((it.root(1) / "names").iterdir())
            async with kvstore(places[2]):  # the host of its name is gone
                await it.fetch(2, name)
                assert it.are_same(0, 2, name)

    asyncio.run(scenario())


def test_what_nobody_has_is_refused_by_name(places: list[Place]) -> None:
    async def scenario() -> None:
        async with hosts(places, 0, 1) as it:
            refused = await it.refused(1, "ab" * 16)
            assert (refused.code, refused.http_status) == ("adapter_unavailable", 503)
            assert "ab" * 16 in refused.message and "no host" in refused.message
            for hostile in ("../../../etc", "AB" * 16, ""):
                assert (await it.refused(1, hostile)).code == "invalid_request"

    asyncio.run(scenario())


def test_files_that_are_others_are_not_taken_and_another_host_is_asked(
    places: list[Place],
) -> None:
    async def scenario() -> None:
        async with hosts(places, 0, 1) as it:
            name = (await it.add(0)).adapter_hash
            flip_byte(it.weights(0, name))
            refused = await it.refused(1, name)
            assert refused.code == "adapter_unavailable"
            assert "host h1 gave files of another hash" in refused.message
            flip_byte(it.weights(0, name))
            async with kvstore(places[2]):
                await it.fetch(2, name)
                flip_byte(it.weights(0, name))
                await it.fetch(1, name)
                assert it.are_same(1, 2, name)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["removed", "stopped"])
def test_a_host_that_goes_in_the_middle_is_replaced(
    places: list[Place], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came of it is not mixed with what the next one sends."""
    number_of = {place.config.adapters_path: at for at, place in enumerate(places)}
    served: list[int] = []  # by which host
    find = parts.FileParts.find
    reached, may_go_on, is_armed = threading.Event(), threading.Event(), threading.Event()

    def break_first(own: parts.FileParts, key: BlockKey, number: int, num_bytes: int) -> Any:
        found = find(own, key, number, num_bytes)
        if found is None or not is_armed.is_set():
            return found
        served.append(number_of[own._files._root])
        is_last = number == parts.num_parts(own._files.sizes(key.hex())) - 1
        if served[-1] == served[0] and is_last:
            if how == "removed":
                shutil.rmtree(own._files.folder_of(key.hex()))
                return None
            reached.set()
            may_go_on.wait(20)
        return found

    monkeypatch.setattr(parts.FileParts, "find", break_first)

    async def scenario() -> None:
        async with hosts(places, 1) as it, AsyncExitStack() as stack:
            lives = {0: kvstore(places[0]), 2: kvstore(places[2])}
            for life in lives.values():
                await life.__aenter__()
            name = (await it.add(0)).adapter_hash
            await it.fetch(2, name)
            is_armed.set()
            fetching = asyncio.create_task(it.fetch(1, name))
            if how == "stopped":
                await asyncio.to_thread(reached.wait, 20)
                closing = asyncio.create_task(lives.pop(served[0]).__aexit__(None, None, None))
                asyncio.get_running_loop().call_later(0.1, may_go_on.set)
                await closing
            await fetching
            for life in lives.values():
                stack.push_async_exit(life)
            left = ({0, 2} - {served[0]}).pop()
            assert it.are_same(left, 1, name)
            assert set(served) == {0, 2}

    asyncio.run(scenario())


def test_a_full_disk_is_said_and_leaves_nothing(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    places[1].settings["adapter_disk_bytes_max"] = 1_000

    async def scenario() -> None:
        async with hosts(places, 0, 1) as it:
            name = (await it.add(0)).adapter_hash
            refused = await it.refused(1, name)
            assert (refused.code, refused.http_status) == ("disk_full", 507)
            del places[1].settings["adapter_disk_bytes_max"]
        async with hosts(places, 0, 1) as it:
            monkeypatch.setattr("services.kvstore.adapters.store._IncomingFolder.append", _full)
            assert (await it.refused(1, name)).code == "disk_full"

    asyncio.run(scenario())


def _full(*_: Any) -> None:
    raise OSError(28, os.strerror(28))


def test_copies_go_when_nobody_has_asked_for_long(places: list[Place]) -> None:
    places[1].settings["adapter_keep_s"] = 0.0

    async def scenario() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("services.kvstore.adapters.service.TICK_S", 0.02)
            async with hosts(places, 0, 1) as it:
                name = (await it.add(0)).adapter_hash
                await it.fetch(1, name)
                await eventually(lambda: not it.hashes(1))
                assert it.hashes(0) == {name}, "its name is there"
                await it.fetch(1, name)

    asyncio.run(scenario())


def test_the_object_store_has_what_no_host_has_any_more(
    places: list[Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for place in places:
        place.settings["objects_url"] = f"file://{bucket}"
    places[0].settings["adapter_keep_s"] = 0.0
    monkeypatch.setattr("services.kvstore.adapters.service.TICK_S", 0.02)
    monkeypatch.setattr(saving, "RETRY_S", 0.02)

    async def scenario() -> None:
        async with hosts(places, 0) as it:
            name = (await it.add(0)).adapter_hash
            own = bucket / "adapters" / name / "h1"
            await eventually(lambda: len(list(own.glob("*"))) == 2)
        async with hosts(places, 1) as it:
            flip_byte(own / WEIGHTS)
            refused = await it.refused(1, name)
            assert "the object store gave files of another hash" in refused.message
            flip_byte(own / WEIGHTS)
            (own / "adapter_config.json").rename(bucket / "config")
            assert (await it.refused(1, name)).code == "adapter_unavailable"
            (bucket / "config").rename(own / "adapter_config.json")
            await it.fetch(1, name)
            assert it.are_same(0, 1, name)
        async with hosts(places, 0) as it:  # it knows what it has written, and deletes it
            assert len(list(own.glob("*"))) == 2
            remove = m.AdapterRemove(name="a1", tenant=TenantId("t"))
            await it.bus.request(subjects.ADAPTER_REMOVE, remove, "h1")
            await eventually(lambda: not list(own.glob("*")))
            assert not it.hashes(0)

    asyncio.run(scenario())


def test_what_is_used_much_comes_before_a_turn_asks(places: list[Place]) -> None:
    """Not where no worker serves its base, nor what is used rarely."""

    async def scenario() -> None:
        async with hosts(places, 0, 1, 2) as it:
            worker = FakeWorker(it.bus, "w", HOSTS[1])
            await worker.open()
            much, rare = [(await it.add(0, seed)).adapter_hash for seed in (1, 2)]
            unknown = "ab" * 16  # which nobody has: it must not hold up the others
            used = m.AdaptersUsed(
                fingerprint=FINGERPRINT, card=CARD, uses={unknown: 30, much: 20, rare: 1, "..": 99}
            )
            await it.bus.publish(subjects.ADAPTERS_USED, used)
            await eventually(lambda: it.hashes(1) == {much})
            assert it.are_same(0, 1, much) and not it.hashes(2)
            worker.close()

    asyncio.run(scenario())
