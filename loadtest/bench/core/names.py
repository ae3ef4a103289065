"""What names of adapters cost a frontend, for `symphony bench core`: to find one, and a chat with
the base model beside them. A kvstore's own code puts them into a real Redis.
"""

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import uvloop

from cli.base.children import free_port, stop_child
from loadtest.bench.core import samples
from loadtest.bench.core.frontend import Chat, Edge, make_served
from loadtest.bench.core.timing import Took
from loadtest.servers import start_redis, wait_for_port
from services.frontend.adapters.directory import AdapterDirectory
from services.frontend.models.registry import Models, ServedModel
from services.frontend.sessions.redis import redis_at
from services.frontend.sessions.store import SessionStore
from services.kvstore.adapters.index import AdapterIndex
from services.kvstore.core.registry import Registry, RegistryLimits
from shared.adapters.record import EVERYBODY
from shared.ids import DEFAULT_TENANT, HostId
from shared.runtime.clock import SystemClock
from shared.runtime.redis_client import RedisClient
from shared.wire.messages import AdapterChanged, AdapterRecord

CHATS = 64  # begun in a round
ASKED_MAX = 1000  # names that are found for the first time
HOST = HostId("host-0")


def measure(num_names: int, num_rounds: int) -> dict[str, Any]:
    """Milliseconds until a name is found that is not known yet; microseconds of CPU to find one
    that is, and for a chat with the base model until a worker is sent it, without names and beside
    them.
    """
    with TemporaryDirectory() as folder:
        port = free_port()
        server = start_redis(port, Path(folder), append_only=False)
        try:
            wait_for_port(server, port, "Redis")
            found = uvloop.run(_measure(f"redis://127.0.0.1:{port}/0", num_names, num_rounds))
        finally:
            stop_child(server)
    return {"names": {"names": num_names, **found}}


async def _measure(url: str, num_names: int, num_rounds: int) -> dict[str, float]:
    served, took = make_served(), Took()
    async with AsyncExitStack() as stack:
        store = SessionStore(redis_at(url), SystemClock(), 3600)
        stack.push_async_callback(store.close)
        await _publish(url, num_names)
        asked_ms = await _ask_for(_directory(store, served), min(num_names, ASKED_MAX))
        adapters = SimpleNamespace(model=None)
        edge = await Edge.open(stack, served, cast(AdapterDirectory, adapters))
        for number in range(1 + num_rounds):
            for name, num in (("base_alone", 0), ("base_beside", num_names)):
                names = _directory(store, served)
                for at in range(num):
                    record = _record(at)
                    names.on_changed(
                        AdapterChanged(
                            name=record.name, tenant=record.tenant, revision=1, record=record
                        )
                    )
                adapters.model = names.model
                await names.model(DEFAULT_TENANT, samples.MODEL)  # asks whether an adapter has it
                if num:
                    await _find_all(names, num, took)
                await _chat(edge, took, name if number else "")
    us = took.us()
    return {
        "asked_ms": round(asked_ms, 3),
        **{f"{name}_us": each_us for name, each_us in us.items() if name},
        "base_ratio": round(us["base_beside"] / us["base_alone"], 3),
    }


async def _ask_for(names: AdapterDirectory, num: int) -> float:
    """Milliseconds of each of so many names, asked for one after another; the median."""
    asked_ms = []
    for number in range(num):
        began_s = time.perf_counter()
        assert await names.find(DEFAULT_TENANT, _name(number)) is not None
        asked_ms.append((time.perf_counter() - began_s) * 1e3)
    return median(asked_ms)


async def _find_all(names: AdapterDirectory, num: int, took: Took) -> None:
    for number in range(num):  # a tenant's own names hide shared ones: it has none, as is learnt
        names.on_changed(AdapterChanged(name=_name(number), tenant=DEFAULT_TENANT, revision=1))
    began_ns = time.process_time_ns()
    for number in range(num):
        await names.find(DEFAULT_TENANT, _name(number))
    took.add("known", time.process_time_ns() - began_ns, num)


def _directory(store: SessionStore, served: ServedModel) -> AdapterDirectory:
    models = SimpleNamespace(
        knows=samples.MODEL.__eq__, get=lambda _: served, only=lambda: served,
        own_name=lambda name: name,
    )  # fmt: skip
    return AdapterDirectory(store, cast(Models, models), SystemClock())


async def _publish(url: str, num_names: int) -> None:
    """As a kvstore does that has started."""
    registry = Registry(RegistryLimits(adapter_bytes_max=1 << 30))
    redis = RedisClient(url, None, timeout_s=1.0)

    async def republish() -> None:
        """Done here."""

    index = AdapterIndex(redis, HOST, lambda: registry.state, lambda: registry.names, republish)
    try:
        for number in range(num_names):
            record = _record(number)
            registry.stand(record, 0)
            assert await index.put(record)
    finally:
        await redis.aclose()


def _name(number: int) -> str:
    return f"acme/support-{number}"


def _record(number: int) -> AdapterRecord:
    ranks = {f"self_attn.{each}_proj": 16 for each in "qkvo"}
    return AdapterRecord(
        name=_name(number), tenant=EVERYBODY, model_id=samples.MODEL,
        adapter_hash=f"{number:032x}", ranks=ranks, lora_rank=16, num_bytes=27 << 20,
        image_bytes=27 << 20, root="upload", host_id=HOST, created=1_700_000_000, revision=1,
    )  # fmt: skip


async def _chat(edge: Edge, took: Took, name: str) -> None:
    """Begin chats with the base model."""
    gc.collect()
    chats = [Chat() for _ in range(CHATS)]
    began_ns = time.process_time_ns()
    tasks = [asyncio.create_task(edge.api(*chat.asgi())) for chat in chats]
    await edge.bus.submitted(CHATS)
    took.add(name, time.process_time_ns() - began_ns, CHATS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
