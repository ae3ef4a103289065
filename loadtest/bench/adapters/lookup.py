"""What a frontend does to know what a request's `model` means, by itself: its own code over the
house's Redis, in this process.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cli.runfile import RunState
from services.frontend.adapters.directory import AdapterDirectory
from services.frontend.core.adapters.names import AdapterNames
from services.frontend.models.files import LocalModelFiles
from services.frontend.models.registry import Models
from services.frontend.sessions.redis import redis_at
from services.frontend.sessions.store import SessionStore
from shared.clock import Clock, SystemClock
from shared.errors import PeerUnavailable
from shared.ids import DEFAULT_TENANT, HostId, ModelId, WorkerId
from shared.messages import AdapterChanged, LoraCard, ModelCard, WorkerReport
from shared.tasks import Tasks

EXPIRY_S = 3600
LOOKUPS = 20_000  # of a figure
LOAD_WITHIN_S = 60.0
INTERVAL_NS = 3_600_000_000_000  # of the report: it is the only one


async def measure_lookups(
    run: RunState, source: str, lora: LoraCard, names: Sequence[str]
) -> dict[str, float]:
    """Microseconds a request, means: `core`, the table alone; `known` and `base`, all that is done
    for a name that was heard of and for the base's; `base_alone`, that while no name is known;
    `asked`, for a name that Redis is asked for first.

    Args:
        source: the model's folder.
        lora: what it takes.
        names: registered ones.

    Raises:
        PeerUnavailable: the house does not know one.
    """
    clock, base, tasks = SystemClock(), Path(source).name, Tasks("loading a tokenizer failed")
    store = SessionStore(redis_at(run.redis_url, run.redis_access), clock, EXPIRY_S)
    files = LocalModelFiles(ThreadPoolExecutor(1))
    models = Models(clock, lambda work, _name: tasks.spawn(work), files, (), _no_names)
    directory = AdapterDirectory(store, models, clock)
    try:
        await _load(models, tasks, base, source, lora)
        some = random.Random(1).choices(names, k=LOOKUPS)
        us = {"base_alone": await _base_us(directory, base)}
        us["asked"] = await _us(directory, names)
        us["known"] = await _us(directory, some)
        us["base"] = await _base_us(directory, base)
        us["core"] = _core_us(await _table(directory, names, clock), some, clock)
        return {name: round(each, 2) for name, each in us.items()}
    finally:
        await directory.close()
        await store.close()


async def _no_names(_: object) -> frozenset[str]:
    return frozenset()  # no chat is rendered here


async def _load(models: Models, tasks: Tasks, base: str, source: str, lora: LoraCard) -> None:
    """Let a frontend's models know the base, with its tokenizer."""
    card = ModelCard(
        model_id=ModelId(base), source=source, fingerprint="", max_model_len=1, lora=lora
    )
    models.on_report(
        WorkerReport(
            worker_id=WorkerId("w"), incarnation="1", seq=1, host_id=HostId("h"), state="ready",
            models=[card], interval_ns=INTERVAL_NS,
        )
    )  # fmt: skip
    if not await tasks.wait(LOAD_WITHIN_S) or not models.num_loaded:
        raise PeerUnavailable(f"the tokenizer of {source} could not be loaded")


async def _base_us(directory: AdapterDirectory, base: str) -> float:
    await directory.model(DEFAULT_TENANT, base)  # asks Redis, once
    return await _us(directory, [base] * LOOKUPS)


async def _us(directory: AdapterDirectory, names: Sequence[str]) -> float:
    begun_at = time.perf_counter()
    for name in names:
        await directory.model(DEFAULT_TENANT, name)
    return (time.perf_counter() - begun_at) / len(names) * 1e6


async def _table(directory: AdapterDirectory, names: Sequence[str], clock: Clock) -> AdapterNames:
    """The names as a frontend that heard of each has them."""
    table = AdapterNames()
    for name in names:
        record = await directory.find(DEFAULT_TENANT, name)
        if record is None:
            raise PeerUnavailable(f"the adapter {name} was registered and is not there")
        table.on_changed(
            AdapterChanged(
                name=name, tenant=DEFAULT_TENANT, revision=record.revision, record=record
            ),
            clock.now_ns(),
        )
    return table


def _core_us(table: AdapterNames, names: Sequence[str], clock: Clock) -> float:
    now_ns = clock.now_ns()
    begun_at = time.perf_counter()
    for name in names:
        table.find(DEFAULT_TENANT, name, now_ns, is_base=False)
    return (time.perf_counter() - begun_at) / len(names) * 1e6
