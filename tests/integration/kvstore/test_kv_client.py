"""The worker's connection to a real kvstore, and what is lost on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.kvstore import service
from services.kvstore.core import Effect, Limits, Renew
from services.kvstore.core.worker_calls import WorkerCalls
from services.worker import kv_client
from services.worker.device.base.executor import ModelInfo
from services.worker.device.thread import DeviceThreads
from services.worker.kv_client import KvClient, KvHooks
from services.worker.ports import SharedFiles
from shared.blocks import BlockKey
from shared.bus import Bus
from shared.errors import NotFound, PeerUnavailable
from shared.ids import HostId, WorkerId
from shared.wire import subjects
from tests.conftest import Server
from tests.integration.harness import connected, eventually
from tests.integration.kvstore.cluster import (
    FINGERPRINT,
    NUM_LAYERS,
    PAGE_BYTES,
    FakeWorker,
    Place,
    kvstore,
    until,
)

INFO = ModelInfo(
    model_id="m", source="m", fingerprint=FINGERPRINT, max_model_len=4096, num_layers=NUM_LAYERS,
    page_bytes=PAGE_BYTES, stored_page_bytes=PAGE_BYTES, vocab_size=100, num_pages=64,
    end_token_ids=frozenset(), block_tokens=64,
)  # fmt: skip


@pytest.fixture
def place(nats_server: Server, redis_server: Server, tmp_path: Path) -> Place:
    return Place(nats_server, redis_server, tmp_path)


@asynccontextmanager
async def client_at(bus: Bus) -> AsyncIterator[tuple[KvClient, list[int]]]:
    """A connected client, and the epochs of its connections."""
    epochs: list[int] = []
    hooks = KvHooks(
        on_connected=lambda _, epoch: epochs.append(epoch), on_disconnected=lambda: None
    )
    threads = DeviceThreads()
    client = KvClient(bus, HostId("h1"), WorkerId("w1"), INFO, hooks, SharedFiles(), threads)
    task = asyncio.create_task(client.maintain())
    try:
        await eventually(lambda: client.is_connected)
        yield client, epochs
    finally:
        task.cancel()
        client.close()
        threads.close()


async def can_lease_all(worker: FakeWorker) -> bool:
    """Whether no page of the arena is pinned or leased."""
    pages = await worker.lease(worker.arena.num_pages)
    await worker.open()  # gives them back
    return len(pages) == worker.arena.num_pages


def test_a_call_of_an_earlier_connection_that_comes_late_pins_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_client, "RETRY_S", 0.01)
    monkeypatch.setattr(service, "Limits", partial(Limits, lease_share=2.0))  # one may have all

    async def scenario() -> None:
        late: list[Any] = []

        async def not_answered(subject: Any, message: Any, *ids: str, **options: Any) -> Any:
            if subject is subjects.KV_STAGE:
                late.append(message)
                raise PeerUnavailable("standing still")
            return await request(subject, message, *ids, **options)

        async with connected(place.nats.url, "w2") as other_bus, kvstore(place):
            other = FakeWorker(other_bus, "w2")
            await other.open()
            keys = await other.store(3)
            async with connected(place.nats.url, "w1") as bus:
                request = bus.request
                monkeypatch.setattr(bus, "request", not_answered)
                async with client_at(bus) as (client, epochs):
                    assert await client.stage(keys) is None
                    await eventually(lambda: epochs == [1, 2])
                    with pytest.raises(NotFound) as caught:
                        await request(subjects.KV_STAGE, late[0], "h1")
                    assert caught.value.code == "unknown_worker"
                    assert client.is_connected
                    assert await can_lease_all(other)
            other.close()

    asyncio.run(scenario())


def test_a_ticket_whose_answer_was_lost_expires(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.02)
    monkeypatch.setattr(service, "Limits", partial(Limits, ticket_ns=1_000_000, lease_share=2.0))

    async def scenario() -> None:
        async with connected(place.nats.url, "w") as bus, kvstore(place):
            alive, standing = FakeWorker(bus, "w2"), FakeWorker(bus, "w1")
            await alive.open()
            await standing.open()
            assert (await standing.stage(await standing.store(3))).num_blocks == 3
            await until(lambda: can_lease_all(alive))
            alive.close()
            standing.close()

    asyncio.run(scenario())


def test_a_client_renews_what_it_holds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_client, "PROBE_S", 0.01)
    renewed: list[list[int]] = []
    on_renew = WorkerCalls.on_renew

    def noted(self: WorkerCalls, event: Renew, now_ns: int) -> tuple[list[BlockKey], list[Effect]]:
        renewed.append(event.tickets)
        return on_renew(self, event, now_ns)

    monkeypatch.setattr(WorkerCalls, "on_renew", noted)

    async def scenario() -> None:
        async with connected(place.nats.url, "w") as bus, kvstore(place):
            other = FakeWorker(bus, "w2")
            await other.open()
            keys = await other.store(3)
            async with client_at(bus) as (client, _):
                first, second = await client.stage(keys), await client.stage(keys[:1])
                assert first is not None and second is not None
                await eventually(lambda: renewed[-1:] == [[first.ticket, second.ticket]])
                await client.release(first.ticket)
                await eventually(lambda: renewed[-1:] == [[second.ticket]])
            other.close()

    asyncio.run(scenario())
