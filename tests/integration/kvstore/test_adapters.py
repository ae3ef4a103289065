"""The registry of adapters over real NATS, Redis and files."""

import asyncio
import base64
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from services.kvstore.adapters import service
from services.kvstore.adapters.files import AdapterFiles
from services.kvstore.adapters.index import AdapterIndex, AdapterStoreAway
from shared.adapters.record import (
    EVERYBODY,
    adapter_gone_redis_key,
    adapters_gone_redis_key,
    adapters_redis_key,
    decode_adapter,
)
from shared.bus import Bus
from shared.errors import NotFound, SymphonyError
from shared.ids import FrontendId, HostId, ModelId, TenantId, WorkerId
from shared.wire import messages as m
from shared.wire import subjects
from tests.adapters import CARD, write_adapter
from tests.conftest import Server
from tests.integration.harness import connected, eventually
from tests.integration.kvstore.cluster import Place, kvstore, kvstore_process, until

T = TenantId("t")
MODEL = ModelId("base")


@pytest.fixture
def place(nats_server: Server, redis_server: Server, tmp_path: Path) -> Place:
    settings = {"adapter_dirs": [tmp_path / "adapters"], "adapter_keep_s": 0.0}
    return Place(nats_server, redis_server, tmp_path, settings)


@dataclass
class Outside:
    place: Place
    bus: Bus
    redis: Any
    changes: list[m.AdapterChanged] = field(default_factory=list)

    def folder(self, seed: int = 0, **config: Any) -> str:
        return str(write_adapter(self.place.directory / "adapters" / f"a{seed}", seed, **config))

    async def add(
        self, name: str, path: str = "", *, tenant: TenantId = T, **fields: Any
    ) -> m.AdapterRecord:
        add = m.AdapterAdd(name=name, tenant=tenant, model_id=MODEL, card=CARD, path=path, **fields)
        return await self.bus.request(subjects.ADAPTER_ADD, add, "h1", timeout_s=20)

    async def remove(self, name: str, tenant: TenantId = T) -> m.AdapterRecord:
        remove = m.AdapterRemove(name=name, tenant=tenant)
        return await self.bus.request(subjects.ADAPTER_REMOVE, remove, "h1")

    async def refused(self, name: str, path: str = "", **fields: Any) -> SymphonyError:
        with pytest.raises(SymphonyError) as caught:
            await self.add(name, path, **fields)
        return caught.value

    async def named(self, name: str, tenant: TenantId = T) -> m.AdapterRecord | None:
        data = await self.redis.hget(adapters_redis_key(tenant), name)
        return None if data is None else decode_adapter(data)

    def hashes(self) -> set[str]:
        return {path.name for path in self.root.iterdir()} - {"names"}

    @property
    def root(self) -> Path:
        return self.place.config.adapters_path


@asynccontextmanager
async def outside(place: Place) -> AsyncIterator[Outside]:
    redis: Any = Redis.from_url(place.redis.url)
    async with connected(place.nats.url) as bus:
        it = Outside(place, bus, redis)
        await bus.subscribe(subjects.ADAPTER_CHANGED, it.changes.append)
        await bus.flush()
        try:
            yield it
        finally:
            await redis.aclose()


def test_a_tenant_s_removed_names_are_so_many_at_most(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves a note for a day."""
    monkeypatch.setattr("services.kvstore.adapters.service.GONE_MAX", 1)

    async def scenario() -> None:
        async with kvstore(place), outside(place) as it:
            await it.add("a", it.folder(1))
            await it.remove("a")
            assert (await it.refused("b", it.folder(1))).code == "tenant_quota"
            await it.add("b", it.folder(1), tenant=EVERYBODY)
            await it.add("a", it.folder(1))
            await it.add("b", it.folder(1))
            await it.remove("b")
            key = adapters_gone_redis_key(T)
            assert await it.redis.zrange(key, 0, -1) == [b"b"]
            await it.redis.zadd(key, {"b": 1.0})  # as if a day had passed
            await it.add("c", it.folder(1))

    asyncio.run(scenario())


def test_an_adapter_comes_is_replaced_and_goes(place: Place) -> None:
    async def scenario() -> None:
        async with kvstore(place) as runtime, outside(place) as it:
            first = await it.add("a", it.folder(1))
            assert (first.tenant, first.model_id, first.host_id) == (T, MODEL, "h1")
            assert first.lora_rank == 4 and first.image_bytes % (2 * CARD.page_bytes) == 0
            assert first.root == it.folder(1) and first.revision == 1
            assert await it.named("a") == first and await it.named("a", EVERYBODY) is None
            refused = await it.refused("a", it.folder(2))
            assert (refused.code, refused.http_status) == ("adapter_exists", 400)
            assert "has already been loaded" in refused.message
            second = await it.add("a", it.folder(2), replace=True)
            assert second.adapter_hash != first.adapter_hash and second.revision == 2
            shared = await it.add("b", it.folder(2), tenant=EVERYBODY)
            assert shared.adapter_hash == second.adapter_hash
            assert it.hashes() == {first.adapter_hash, second.adapter_hash}
            await it.remove("a")
            assert await it.named("a") is None
            assert await it.redis.get(adapter_gone_redis_key(T, "a")) == b"3"
            with pytest.raises(NotFound, match=r"The lora adapter 'a' cannot be found\."):
                await it.remove("a")
            again = await it.add("a", it.folder(1))
            assert again.revision == 4
            announced = [(each.name, each.revision, each.record) for each in it.changes]
            assert announced == [
                ("a", 1, first), ("a", 2, second), ("b", 1, shared), ("a", 3, None), ("a", 4, again)
            ]  # fmt: skip
            open_ = m.KvOpen(
                worker_id=WorkerId("w"), incarnation="i", fingerprint="f", num_layers=2,
                page_bytes=4096,
            )  # fmt: skip
            opened = await it.bus.request(subjects.KV_OPEN, open_, "h1")
            files = Path(opened.adapters_path) / again.adapter_hash
            source = Path(it.folder(1))
            for name in ("adapter_config.json", "adapter_model.safetensors"):
                assert (files / name).read_bytes() == (source / name).read_bytes()
            assert runtime.failure is None

    asyncio.run(scenario())


def test_names_outlive_kvstore_and_redis(place: Place) -> None:
    async def scenario() -> None:
        async with outside(place) as it:
            async with kvstore(place):
                first = await it.add("a", it.folder(1))
                await it.add("gone", it.folder(2))
                await it.remove("gone")
                await it.redis.flushall()
                # a change meanwhile does not pass for all that was there
                late = await it.add("late", it.folder(3))
                await until(lambda: is_named(it, first, late))
            leftover = it.root / ".new-leftover"
            leftover.mkdir()
            await it.redis.flushall()
            async with kvstore(place):
                assert not leftover.exists()
                await until(lambda: is_named(it, first, late))
                assert await it.named("gone") is None
            # what Redis has and the disk has not is no adapter
            stale = replace(first, name="stale")
            await it.redis.hset(adapters_redis_key(T), "stale", m.encode(stale))
            await it.redis.sadd("symphony:host:h1:adapters", "t\nstale")
            await it.redis.delete("symphony:host:h1:adapters_state")
            async with kvstore(place):
                await until(lambda: is_gone(it, "stale"))
                assert await is_named(it, first, late)

    asyncio.run(scenario())


async def is_named(it: Outside, *records: m.AdapterRecord) -> bool:
    return all([await it.named(record.name, record.tenant) == record for record in records])


async def is_gone(it: Outside, name: str) -> bool:
    return await it.named(name) is None


def test_of_two_hosts_the_later_change_counts(place: Place) -> None:
    async def scenario() -> None:
        async with outside(place) as it:
            async with kvstore(place):
                first = await it.add("a", it.folder(1))
                await it.add("b", it.folder(2))
                # another host replaces one and removes the other, and announces it
                theirs = replace(first, host_id=HostId("h2"), revision=5)
                await it.redis.hset(adapters_redis_key(T), "a", m.encode(theirs))
                changed = m.AdapterChanged(name="a", tenant=T, revision=5, record=theirs)
                await it.bus.publish(subjects.ADAPTER_CHANGED, changed)
                await eventually(lambda: len(list((it.root / "names").iterdir())) == 1)
                assert await it.named("a") == theirs
            # while this one is away, what is left of it is removed
            await it.redis.hdel(adapters_redis_key(T), "b")
            await it.redis.set(adapter_gone_redis_key(T, "b"), 9)
            await it.redis.delete("symphony:host:h1:adapters_state")
            async with kvstore(place):
                await eventually(lambda: not list((it.root / "names").iterdir()))
                assert await it.named("b") is None
                assert (await it.add("b", it.folder(2))).revision == 10
                refused = await it.refused("a", it.folder(3))
                assert refused.code == "adapter_exists"

    asyncio.run(scenario())


def test_what_cannot_be_served_leaves_nothing(place: Place) -> None:
    place.settings |= {"adapter_bytes_max": 50_000, "tenant_adapters_max": 1, "adapters_max": 2}

    async def scenario() -> None:
        async with kvstore(place), outside(place) as it:
            good = it.folder(1)
            outer = str(write_adapter(place.directory / "elsewhere"))
            cases: list[tuple[str, str, int, str]] = [
                ("a b", good, 400, "lora_name"),
                ("a:b", good, 400, "lora_name"),
                ("../a", good, 400, "lora_name"),
                ("a", outer, 403, "adapter_path_forbidden"),
                ("a", f"{good}-none", 404, "not_found"),
                ("a", it.folder(2, use_dora=True), 400, "adapter_invalid"),
                ("a", it.folder(3, r="8"), 400, "adapter_invalid"),
            ]
            torn = Path(it.folder(4)) / "adapter_model.safetensors"
            torn.write_bytes(torn.read_bytes()[:-1])
            cases.append(("a", str(torn.parent), 400, "adapter_invalid"))
            large = Path(it.folder(5)) / "adapter_model.safetensors"
            large.write_bytes(bytes(60_000))
            cases.append(("a", str(large.parent), 413, "adapter_too_large"))
            for name, path, status, code in cases:
                refused = await it.refused(name, path)
                assert (refused.http_status, refused.code) == (status, code), refused.message
            assert it.hashes() == set() and await it.redis.hgetall(adapters_redis_key(T)) == {}
            await it.add("a", good)
            refused = await it.refused("b", good)
            assert (refused.http_status, refused.code) == (429, "tenant_quota")
            await it.add("a", good, tenant=TenantId("u"))
            refused = await it.refused("a", good, tenant=TenantId("v"))
            assert (refused.http_status, refused.code) == (429, "too_many_adapters")
            assert len(it.hashes()) == 1 and not list(it.root.glob(".new*"))

    asyncio.run(scenario())


def test_all_adapters_together_may_not_fill_the_disk(place: Place) -> None:
    size = sum(len(data) for data in contents(write_adapter(place.directory / "one")).values())
    place.settings |= {"adapter_disk_bytes_max": size * 3 // 2}

    async def scenario() -> None:
        async with kvstore(place), outside(place) as it:
            await it.add("a", it.folder(1))
            refused = await it.refused("a", it.folder(2), tenant=TenantId("u"))
            assert (refused.http_status, refused.code) == (507, "disk_full")
            assert len(it.hashes()) == 1 and not list(it.root.glob(".new*"))

    asyncio.run(scenario())


def test_a_full_disk_is_told_and_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with kvstore(place), outside(place) as it:
            first = await it.add("a", it.folder(1))

            def full(*_: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            for owner, name in ((AdapterFiles, "install"), (AdapterFiles, "write_record")):
                with monkeypatch.context() as patch:
                    calls = iter([full])
                    real = getattr(owner, name)
                    patch.setattr(owner, name, lambda *args, r=real, c=calls: next(c, r)(*args))
                    refused = await it.refused("a", it.folder(2), replace=True)
                assert (refused.http_status, refused.code) == (507, "disk_full")
                assert await it.named("a") == first
                assert not list(it.root.glob(".new*"))
            await it.add("a", it.folder(2), replace=True)

    asyncio.run(scenario())


def test_while_redis_is_away_nothing_changes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with outside(place) as it, kvstore(place):
            first = await it.add("a", it.folder(1))
            real = AdapterIndex.put

            async def lost(self: AdapterIndex, record: m.AdapterRecord, before: str = "") -> bool:
                await real(self, record, before)
                raise AdapterStoreAway("lost on the way back")

            with monkeypatch.context() as patch:
                patch.setattr(AdapterIndex, "put", lost)
                refused = await it.refused("a", it.folder(2), replace=True)
                assert refused.http_status == 503
                refused = await it.refused("b", it.folder(2))
            # the disk is right: what Redis took all the same is taken back
            await until(lambda: is_gone(it, "b"))

            async def is_first() -> bool:
                found = await it.named("a")
                return found is not None and found.adapter_hash == first.adapter_hash

            await until(is_first)
            place.redis.kill()
            refused = await it.refused("c", it.folder(2))
            assert (refused.http_status, refused.code) == (503, "adapter_store_unavailable")
            with pytest.raises(SymphonyError, match="index of adapters"):
                await it.remove("a")
            place.redis.start()
            await it.redis.connection_pool.disconnect()
            await until(is_first)
            await it.add("c", it.folder(2))

    asyncio.run(scenario())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Frontend:
    """Hands on what it was sent; not while it is held."""

    def __init__(self, bus: Bus, files: dict[str, bytes]) -> None:
        self._bus = bus
        self.is_held = False
        self.was_asked = asyncio.Event()
        self.take(files)

    def take(self, files: dict[str, bytes]) -> None:
        """An upload."""
        self.files = files
        self.upload = m.AdapterUpload(
            frontend_id=FrontendId("f1"),
            upload_id="u",
            files={name: len(data) for name, data in files.items()},
        )

    async def serve(self) -> None:
        await self._bus.serve(subjects.UPLOAD_PULL, self._part, "f1")
        await self._bus.flush()

    async def _part(self, pull: m.UploadPull) -> m.UploadPart:
        if self.is_held and pull.file == "adapter_model.safetensors":
            self.was_asked.set()
            await asyncio.Event().wait()
        data = self.files[pull.file][pull.offset :][: pull.num_bytes]
        return m.UploadPart(data=base64.b64encode(data).decode())


def test_an_upload_is_pulled_from_its_frontend(place: Place) -> None:
    async def scenario() -> None:
        async with kvstore(place), outside(place) as it:
            folder = Path(it.folder(1))
            files = contents(folder)
            # longer than one message takes: bytes behind the tensors would be refused
            files["tokenizer.json"] = b" " * 1_500_000
            frontend = Frontend(it.bus, files)
            await frontend.serve()
            record = await it.add("a", upload=frontend.upload)
            stored = it.root / record.adapter_hash
            assert contents(stored) == files
            assert record.root == "upload"
            hostile: list[tuple[dict[str, int], str]] = [
                ({}, "adapter_invalid"),
                ({**frontend.upload.files, "adapter_config.json": -5}, "invalid_request"),
                ({**frontend.upload.files, "../../evil": 5, "tokenizer.json": 9}, ""),
            ]
            for sizes, code in hostile[:2]:
                refused = await it.refused("b", upload=replace(frontend.upload, files=sizes))
                assert refused.code == code
            await it.add("b", upload=replace(frontend.upload, files=hostile[2][0]))
            assert not (place.directory / "evil").exists()
            frontend.files["adapter_config.json"] = b"{"  # shorter than was said
            refused = await it.refused("c", upload=frontend.upload)
            assert refused.http_status == 503
            unknown = replace(frontend.upload, frontend_id=FrontendId("none"))
            assert (await it.refused("c", upload=unknown)).http_status == 503
            assert not list(it.root.glob(".new*"))

    asyncio.run(scenario())


def test_a_process_killed_while_it_adds_has_it_whole_or_not_at_all(place: Place) -> None:
    """Between files and record, and anywhere else on the disk: tests/unit/kvstore/adapters."""

    async def scenario() -> None:
        async with outside(place) as it:
            frontend = Frontend(it.bus, contents(Path(it.folder(1))))
            await frontend.serve()
            async with kvstore_process(place, it.bus) as child:
                old = await it.add("old", upload=frontend.upload)
                frontend.take(contents(Path(it.folder(2))))
                frontend.is_held = True
                adding = asyncio.create_task(it.add("new", upload=frontend.upload))
                await frontend.was_asked.wait()
                (copied,) = it.root.glob(".new-*")
                assert [path.name for path in copied.iterdir()]
                child.kill()
                child.wait()
                adding.cancel()
            async with kvstore_process(place, it.bus) as child:
                assert it.hashes() == {old.adapter_hash}
                assert await it.named("new") is None
                assert (await it.refused("old", upload=frontend.upload)).code == "adapter_exists"
                frontend.is_held = False
                new = await it.add("new", upload=frontend.upload)
                child.kill()
                child.wait()
            found = AdapterFiles(it.root).scan()
            assert sorted(each.name for each in found.records) == ["new", "old"]
            assert contents(it.root / new.adapter_hash) == frontend.files

    asyncio.run(scenario())


def test_files_go_when_no_turn_can_need_them(place: Place) -> None:
    async def scenario() -> None:
        async with outside(place) as it:
            async with kvstore(place):
                record = await it.add("a", it.folder(1))
                await it.remove("a")
                assert it.hashes() == {record.adapter_hash}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(service, "TICK_S", 0.02)
                async with kvstore(place):
                    await eventually(lambda: not it.hashes())

    asyncio.run(scenario())
