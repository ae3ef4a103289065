"""The worker's shell: loads models, listens for turns, reports what it has."""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Literal

from services.worker import metrics
from services.worker.config import WorkerConfig
from services.worker.core.costs.speeds import SpeedReports
from services.worker.core.effects import Prefetched
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine.status import EngineStatus
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.pages import PagePool
from services.worker.core.splitting import turns_held_max
from services.worker.device.base.executor import Executor, ModelInfo
from services.worker.device.copying.mover import Moved
from services.worker.device.thread import DeviceThreads
from services.worker.kv_client import KvClient, KvHooks
from services.worker.load import load_models
from services.worker.model_runner import ModelRunner
from services.worker.oneshot.effects import BatchLimits
from services.worker.oneshot.model import LoadableOneshot, OneshotModel
from services.worker.oneshot.runner import OneshotRunner
from services.worker.outbox import EngineListeners
from services.worker.ports import OnMoved, SharedFiles, TextModel, VllmModel, WorkerPorts
from services.worker.prompts import PromptPuller
from services.worker.runner import EngineRunner
from services.worker.traces import TurnTraces
from services.worker.vllm.protocol import VllmEngine
from services.worker.vllm_kv import VllmKv
from services.worker.vllm_runner import VllmRunner
from shared.arena import Arena
from shared.blocks import unpack_keys
from shared.errors import MalformedMessage, NoCapacity
from shared.ids import ModelId, WorkerId, new_id
from shared.owners import owner_key
from shared.runtime.stages import StartStages
from shared.runtime.tasks import Tasks, wait_set
from shared.service import Runtime
from shared.wire.messages import (
    Empty,
    KvPool,
    ModelCard,
    Prefetch,
    PrefetchDrop,
    Prompt,
    SessionForget,
    SessionForgotten,
    StepModelFit,
    TurnCancel,
    TurnPrefetched,
    TurnRef,
    TurnsStart,
    TurnStart,
    WorkerReport,
    pack_hashes,
)
from shared.wire.subjects import (
    SESSION_FORGET,
    TURN_PREFETCHED,
    WORKER_CANCEL,
    WORKER_PING,
    WORKER_PREFETCH,
    WORKER_PREFETCH_DROP,
    WORKER_REPORT,
    WORKER_START,
)

log = logging.getLogger(__name__)

KVSTORE_PATIENCE_S = 3.0
FAILED_PATIENCE_S = 10.0  # to end in order: less than a supervisor waits for a silent process
STATES: dict[str, Literal["loading", "ready", "draining"]] = {
    "starting": "loading",
    "ready": "ready",
    "draining": "draining",
}


class Worker:
    """Everything one worker process does between the bus and its engines."""

    def __init__(
        self, runtime: Runtime, config: WorkerConfig, ports: WorkerPorts | None = None
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._ports = ports or machine_ports(runtime.stages)
        self._worker_id = WorkerId(f"{config.host_id}-w{config.instance}"[-64:])
        runtime.process = self._worker_id
        self._incarnation = new_id("inc")
        self._runners: dict[str, ModelRunner] = {}
        self._engines: dict[str, EngineRunner] = {}  # those of them that are ours
        self._metrics: dict[str, metrics.EngineMetrics] = {}  # of each runner
        self._kvs: list[KvClient] = []
        self._oneshot: OneshotRunner | None = None  # from when all models are loaded
        self._puller = PromptPuller(runtime.bus, runtime.clock, self._on_prompt)
        runtime.parts["prompts"] = self._puller.core
        self._traces = TurnTraces(runtime.tracer, runtime.clock, self._worker_id)
        self._num_reports = 0
        self._speed_reports = SpeedReports()
        self._created = runtime.clock.wall_ns() // 1_000_000_000
        self._report_now = asyncio.Event()
        self._tasks = Tasks("publishing what was prefetched failed")
        runtime.pools = self._pools

    async def serve(self) -> None:
        """Load, listen, and work until the process is to stop."""
        runtime = self._runtime
        runtime.stack.callback(self._ports.thread.close)
        runtime.spawn(self._report(), "report")
        await self._load()
        bus, me = runtime.bus, self._worker_id
        await bus.subscribe(WORKER_START, self._on_starts, me)
        await bus.subscribe(WORKER_CANCEL, self._on_cancel, me)
        await bus.subscribe(WORKER_PREFETCH, self._on_prefetch, me)
        await bus.subscribe(WORKER_PREFETCH_DROP, self._on_prefetch_drop, me)
        await bus.serve(WORKER_PING, self._on_ping, me)
        await bus.serve(SESSION_FORGET, self._on_forget)
        assert self._oneshot is not None, "made by _load"
        await self._oneshot.listen()
        # Turns may be waiting for this worker: without the kvstore it would compute their history.
        with runtime.stages.stage("connect"):
            await asyncio.gather(*(kv.wait_met(KVSTORE_PATIENCE_S) for kv in self._kvs))
        await runtime.ready()
        self._report_now.set()
        await runtime.stopping.wait()
        runtime.state = "draining"
        self._report_now.set()
        if runtime.exit_code:  # its turns cannot end any more, nor perhaps its threads
            self._ports.die_within(FAILED_PATIENCE_S)
        else:
            await self._drain()

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        oneshots: list[OneshotModel | LoadableOneshot] = []
        load = self._ports.load(
            self._config, self._ports.thread, partial(self._moved_callback, loop)
        )
        async for model in load:
            match model:
                case TextModel():
                    self._add(model.executor, model.number)
                case VllmModel():
                    self._add_vllm(model.engine)
                case _:
                    oneshots.append(model)
        self._add_oneshots(oneshots)

    def _moved_callback(self, loop: asyncio.AbstractEventLoop, model_id: str) -> OnMoved:
        """The mover's callback, carried from its thread into the event loop."""

        def report(moved: Moved) -> None:
            loop.call_soon_threadsafe(self._engines[model_id].on_moved, moved)

        return report

    def _add_oneshots(self, models: list[OneshotModel | LoadableOneshot]) -> None:
        runtime = self._runtime
        self._oneshot = OneshotRunner(
            runtime.bus,
            runtime.clock,
            self._worker_id,
            {model.card.model_id: model for model in models},
            BatchLimits(models_bytes_max=self._config.oneshot_bytes),
            self._ports.thread,
            on_change=self._report_now.set,
        )
        runtime.parts["batches"] = self._oneshot.core
        runtime.stack.callback(self._oneshot.close)
        runtime.spawn(self._oneshot.run(), "one-shot models")
        for model in models:
            card = model.card
            what = "model measured" if isinstance(model, LoadableOneshot) else "model loaded"
            log.info(what, extra={"model": card.model_id, "slo_ms": card.slo_ms})

    def _add(self, executor: Executor, number: int) -> None:
        runtime, config, info = self._runtime, self._config, executor.info
        core = _make_core(config, executor, self._ports.limits)
        hooks = KvHooks(
            on_connected=partial(self._on_kv_connected, info.model_id),
            on_disconnected=partial(self._on_kv_disconnected, info.model_id),
            before_open=executor.mover.detach,
            before_use=executor.mover.prepare,
            take_used=core.take_used,
            on_source=core.on_source,
            on_copies_gone=core.pool.on_copies_gone,
        )
        ports = self._ports
        kv_id = WorkerId(f"{self._worker_id}-m{number}"[-64:])
        kv = KvClient(runtime.bus, config.host_id, kv_id, info, hooks, ports.files, ports.thread)
        runner = EngineRunner(
            runtime.bus, runtime.clock, core, executor, kv, ports.thread, self._listeners()
        )
        self._runners[info.model_id] = self._engines[info.model_id] = runner
        runtime.parts[f"engine {info.model_id}"] = core
        self._metrics[info.model_id] = metrics.EngineMetrics(info.model_id)
        runtime.stack.callback(executor.close)
        runtime.stack.callback(kv.close)
        runtime.spawn(runner.run(), f"engine {info.model_id}")
        runtime.spawn(runner.check_for_ever(), f"integrity of {info.model_id}")
        if config.write_behind:
            self._kvs.append(kv)
            runtime.spawn(kv.maintain(), f"kvstore of {info.model_id}")
        log.info("model loaded", extra={"model": info.model_id, "pages": info.num_pages})

    def _add_vllm(self, engine: VllmEngine) -> None:
        runtime, info = self._runtime, engine.info
        kv = self._vllm_kv(engine) if engine.peers else None
        limits = _limits(self._config, self._ports.limits, info)
        runner = VllmRunner(runtime.bus, runtime.clock, engine, limits, self._listeners(), kv)
        self._runners[info.model_id] = runner
        self._metrics[info.model_id] = metrics.EngineMetrics(info.model_id)
        runtime.stack.callback(runner.close)
        runtime.spawn(runner.run(), f"engine {info.model_id}")
        log.info("model loaded by vLLM", extra={"model": info.model_id, "pages": info.num_pages})

    def _vllm_kv(self, engine: VllmEngine) -> VllmKv:
        runtime, ports, info = self._runtime, self._ports, engine.info
        kv = VllmKv(engine.peers, runtime.clock, ports.on_stuck)
        kv_id = WorkerId(f"{self._worker_id}-m{len(self._kvs)}"[-64:])
        kv.kv = client = KvClient(
            runtime.bus, self._config.host_id, kv_id, info, kv.hooks(), ports.files, ports.thread
        )
        self._kvs.append(client)
        runtime.stack.callback(client.close)
        runtime.spawn(kv.run(), f"KV connectors of {info.model_id}")
        runtime.spawn(client.maintain(), f"kvstore of {info.model_id}")
        return kv

    def _listeners(self) -> EngineListeners:
        return EngineListeners(
            on_stuck=self._ports.on_stuck,
            on_progress=self._report_now.set,
            on_ended=self._traces.on_ended,
            on_prefetched=self._on_prefetched,
        )

    def _on_kv_connected(self, model_id: str, arena: Arena, epoch: int) -> None:
        self._engines[model_id].on_kv_connected(arena, epoch)

    def _on_kv_disconnected(self, model_id: str) -> None:
        self._engines[model_id].on_kv_disconnected()

    def _on_starts(self, message: TurnsStart) -> None:
        for start in message.turns:
            self._on_start(start)

    def _on_start(self, start: TurnStart) -> None:
        if start.model_id not in self._runners:
            log.warning("turn for a model not served here", extra={"model": start.model_id})
            return  # missing from the next reports, it is placed again
        turns_max = turns_held_max(self._runtime.bus.payload_bytes_max)
        if not self._puller.is_pulling(start.turn_id) and self._num_turns >= turns_max:
            error = NoCapacity("too many turns are on this worker")
            error.code = "overloaded"
            self._runners[start.model_id].refuse(start, error)
            return
        self._puller.start(self._traces.on_start(start))

    @property
    def _num_turns(self) -> int:
        return len(self._puller) + sum(runner.num_turns for runner in self._runners.values())

    def _on_prompt(self, start: TurnStart, prompt: Prompt | None) -> None:
        self._runners[start.model_id].on_prompt(start, prompt)

    def _on_cancel(self, cancel: TurnCancel) -> None:
        self._puller.cancel(cancel.turn_id, cancel.attempt)
        for runner in self._runners.values():
            runner.on_cancel(cancel)

    def _on_prefetch(self, prefetch: Prefetch) -> None:
        if (runner := self._runners.get(prefetch.model_id)) is None:
            return
        if prefetch.running is None:
            runner.on_prefetch(prefetch)
        else:
            self._puller.look(prefetch.running, partial(runner.on_prefetch, prefetch))

    def _on_prefetched(self, prefetched: Prefetched) -> None:
        if prefetched.trace:
            self._traces.on_prefetched(prefetched)
        if prefetched.running is not None and not prefetched.adapter_hash:
            message = TurnPrefetched(
                turn_id=prefetched.running,
                worker_id=self._worker_id,
                num_blocks=prefetched.num_here,
            )
            self._tasks.spawn(self._runtime.bus.publish(TURN_PREFETCHED, message))

    def _on_prefetch_drop(self, drop: PrefetchDrop) -> None:
        if (runner := self._runners.get(drop.model_id)) is not None:
            runner.on_prefetch_drop(owner_key(drop.tenant, drop.session_id))

    async def _on_forget(self, forget: SessionForget) -> SessionForgotten:
        try:
            keys = unpack_keys(forget.keys)
        except ValueError as error:
            raise MalformedMessage(f"keys: {error}", "keys") from None
        self._puller.forget(forget.tenant, forget.session_id)
        owner = owner_key(forget.tenant, forget.session_id)
        known = await asyncio.gather(*(r.forget(owner, keys) for r in self._runners.values()))
        return SessionForgotten(worker_id=self._worker_id, was_known=any(known))

    async def _on_ping(self, _: Empty) -> Empty:
        return Empty()

    async def _report(self) -> None:
        while True:
            self._report_now.clear()
            statuses = {name: runner.status() for name, runner in self._runners.items()}
            if self._runtime.bus.connected:  # what was published meanwhile would arrive too late
                await self._runtime.bus.publish(WORKER_REPORT, self._make_report(statuses))
            for model_id, status in statuses.items():
                times = self._runners[model_id].take_adapter_times()
                self._metrics[model_id].report(status, times)
            await wait_set(self._report_now, self._config.report_interval_ms / 1e3)

    def _pools(self) -> list[KvPool]:
        return [
            KvPool(
                model=info.model_id,
                num_blocks=info.num_pages // info.num_layers,
                num_layers=info.num_layers if self._kvs else 0,
                page_bytes=info.stored_page_bytes,
            )
            for info in (runner.info for runner in self._runners.values())
        ]

    def _make_report(self, statuses: Mapping[str, EngineStatus]) -> WorkerReport:
        self._num_reports += 1
        turns: list[TurnRef] = self._puller.refs()
        for runner in self._runners.values():
            turns += runner.refs()
        pools = [status.pool for status in statuses.values()]
        num_free = sum(pool.num_free for pool in pools)
        num_clean = sum(pool.num_takeable for pool in pools)
        num_pages = sum(pool.num_pages for pool in pools)
        oneshot = self._oneshot
        return WorkerReport(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            seq=self._num_reports,
            host_id=self._config.host_id,
            state=STATES[self._runtime.state],
            models=[self._card(self._runners[name], each) for name, each in statuses.items()],
            turns=turns,
            has_kvstore=any(kv.has_met for kv in self._kvs),
            num_running=sum(status.num_running for status in statuses.values()),
            num_waiting=sum(status.num_waiting for status in statuses.values()),
            num_waiting_tokens=sum(status.num_waiting_tokens for status in statuses.values()),
            num_pages=num_pages,
            num_pages_free=num_free,
            num_pages_clean=num_clean,
            num_pages_dirty=num_pages - num_free - num_clean,
            interval_ns=self._config.report_interval_ms * 1_000_000,
            pid=self._ports.pid,
            oneshot=oneshot.cards() if oneshot is not None else [],
            oneshot_bytes=oneshot.bytes_max if oneshot is not None else 0,
            oneshot_lacks=oneshot.lacks() if oneshot is not None else [],
            batches=oneshot.refs() if oneshot is not None else [],
            fences=oneshot.fences if oneshot is not None else [],
            adapters=pack_hashes(
                [name for status in statuses.values() for name in status.adapters.resident]
            ),
            turns_running_max=self._config.turns_running_max,
            rooms=[
                status.pool.room(
                    ModelId(name),
                    self._runners[name].info.num_layers,
                    self._runners[name].num_turns,
                )
                for name, status in statuses.items()
            ],
            step_models=[
                StepModelFit(model_id=ModelId(model_id), name=name, **asdict(model))
                for model_id, status in statuses.items()
                for name, model in status.step_models.items()
            ],
            speeds=self._speed_reports.next([r.speeds() for r in self._runners.values()]),
            stage=self._runtime.stages.now(),
        )

    def _card(self, runner: ModelRunner, status: EngineStatus) -> ModelCard:
        info = runner.info
        return ModelCard(
            model_id=ModelId(info.model_id),
            source=info.source,
            fingerprint=info.fingerprint,
            max_model_len=status.tokens_max,
            block_tokens=info.block_tokens,
            created=self._created,
            emulated=info.is_emulated,
            sampling=info.sampling,
            vocab_size=info.vocab_size,
            lora=info.lora,
            short_rope_max=info.short_rope_max,
            takes_images=info.takes_images,
        )

    async def _drain(self) -> None:
        """Let running turns and batches end; what is left after that is placed elsewhere."""
        drains = [runner.drain() for runner in self._runners.values()]
        if self._oneshot is not None:
            drains.append(self._oneshot.drain())
        try:
            await asyncio.wait_for(asyncio.gather(*drains), self._config.drain_ms / 1e3)
        except TimeoutError:
            log.warning("stopping with unfinished work, which schedulers will place again")


def _limits(config: WorkerConfig, limits: EngineLimits, info: ModelInfo) -> EngineLimits:
    """Those of a model, from the settings."""
    return replace(
        limits,
        max_model_len=info.max_model_len,
        turns_running_max=config.turns_running_max,
        prefill_admission=config.prefill_admission,
        layerwise=config.layerwise,
        slo_ttft_ns=int(config.slo_ttft_ms * 1e6),
        lora_start=config.lora_start,
        short_rope_max=info.short_rope_max,
    )


def _make_core(config: WorkerConfig, executor: Executor, limits: EngineLimits) -> EngineCore:
    info = executor.info
    most = config.prefill_tokens_max or executor.prefill_tokens_max
    limits = replace(_limits(config, limits, info), prefill_tokens_max=most)
    return EngineCore(
        limits,
        PagePool(info.num_pages, info.num_layers, config.eviction),
        info.page_bytes,
        info.end_token_ids,
        info.block_tokens,
        info.fingerprint,
        info.stored_page_bytes,
    )


def machine_ports(stages: StartStages) -> WorkerPorts:
    """The machine that this process runs on, whose models are loaded in these stages."""
    return WorkerPorts(
        thread=DeviceThreads(), files=SharedFiles(), load=partial(load_models, stages),
        pid=os.getpid(),
    )  # fmt: skip


async def main(runtime: Runtime, config: WorkerConfig) -> None:
    """Entry for `shared.service.run` and for tests."""
    await Worker(runtime, config).serve()
