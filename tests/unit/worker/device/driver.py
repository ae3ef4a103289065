"""Runs turns through the production core and a real executor, without a network."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from services.worker.core.adapters.image import AdapterUse
from services.worker.core.effects import (
    BuildImage,
    Effect,
    Emit,
    EmitTokens,
    LoadPages,
    PageLoads,
)
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.pages import PagePool
from services.worker.core.step import StepPlan
from services.worker.core.turns.request import TurnRequest
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from services.worker.device.base.executor import Executor
from services.worker.device.copying.mover import Loaded, Moved
from services.worker.device.isolate import launch_isolated
from shared.adapters.layout import layout_image
from shared.blocks import root_key
from shared.ids import DEFAULT_TENANT, FrontendId, SessionId, TurnId
from shared.wire.messages import AdapterRef, SamplingParams, StepOutput, TurnDelta


def make_core(executor: Executor, **limits: Any) -> EngineCore:
    info = executor.info
    limits.setdefault("prefill_tokens_max", 512)
    limits.setdefault("short_rope_max", info.short_rope_max)
    return EngineCore(
        EngineLimits(max_model_len=info.max_model_len, **limits),
        PagePool(info.num_pages, info.num_layers),
        info.page_bytes,
        info.end_token_ids,
        info.block_tokens,
        info.fingerprint,
        info.stored_page_bytes,
    )


@dataclass
class Driver:
    """Attributes:
    adapters: folder with every adapter's files under its hash.
    moved: what the executor's threads report.
    loads: from an arena, which a test makes itself.
    """

    core: EngineCore
    executor: Executor
    adapters: str = ""
    moved: "Queue[Moved]" = field(default_factory=Queue)
    deltas: dict[str, list[TurnDelta]] = field(default_factory=dict)
    num_carried: int = 0
    loads: list[PageLoads] = field(default_factory=list)
    _skipped_ns: int = 0

    def now_ns(self) -> int:
        """Real time, but for what nobody had to wait for."""
        return time.monotonic_ns() + self._skipped_ns

    def submit(self, name: str, tokens: list[int], *args: Any, **named: Any) -> Turn:
        turn = self.make_turn(name, tokens, *args, **named)
        self.perform(self.core.on_turn(turn, self.now_ns()))
        return turn

    def make_turn(
        self,
        name: str,
        tokens: list[int],
        adapter: AdapterRef | None = None,
        session: str | None = None,
        num_history: int = 0,
        **sampling: object,
    ) -> Turn:
        info = self.executor.info
        num_image_blocks, adapter_hash = 0, ""
        if adapter is not None:
            card = info.image_card or info.lora
            assert card is not None
            num_image_blocks = layout_image(card, adapter.ranks).num_blocks
            adapter_hash = adapter.adapter_hash
        params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **sampling})  # type: ignore[arg-type]
        request = TurnRequest(
            turn_id=TurnId(name),
            attempt=1,
            frontend_id=FrontendId("fe"),
            tenant=DEFAULT_TENANT,
            session_id=None if session is None else SessionId(session),
            sampling=params,
            arrived_at_ns=self.now_ns(),
        )
        return Turn(
            request,
            TurnCache(
                owner=request.owner,
                tokens=list(tokens),
                block_tokens=info.block_tokens,
                root=root_key(info.fingerprint, "default", adapter_hash),
                num_history=num_history,
            ),
            AdapterUse(adapter, num_image_blocks),
        )

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                self.deltas.setdefault(effect.delta.turn_id, []).append(effect.delta)
            elif isinstance(effect, EmitTokens):
                for delta in StepOutput(tokens=effect.tokens).all():
                    self.deltas.setdefault(delta.turn_id, []).append(delta)
            elif isinstance(effect, BuildImage):
                self.executor.builder.submit(effect, self.adapters)
            elif isinstance(effect, LoadPages):
                self.loads += effect.loads

    def hear(self, *, waits: bool) -> None:
        """What has moved meanwhile; with `waits`, something has when it returns."""
        while waits or not self.moved.empty():
            moved = self.moved.get(timeout=30)
            assert isinstance(moved, Loaded)
            self.perform(self.core.on_loaded(moved.good, moved.bad, self.now_ns()))
            waits = False

    def run(self, on_step: Callable[[], None] | None = None) -> None:
        """Step until nothing is left to run; as many steps are planned ahead as may be."""
        plans: deque[StepPlan] = deque()
        while True:
            self.hear(waits=False)
            while self.core.plan_at_ns() is not None:
                plan, effects = self.core.plan_step(self.now_ns())
                self.perform(effects)
                if plan is None:
                    break
                self.num_carried += len(plan.carried)
                plans.append(plan)
            if not plans and not self.core.stager.num_loading:
                if not self._skip_to_deadline():
                    return
                continue
            if not plans:
                self.hear(waits=True)
                continue
            result = launch_isolated(self.executor, plans.popleft()).result()
            self.perform(self.core.on_step(result, self.now_ns()))
            if on_step is not None:
                on_step()

    def _skip_to_deadline(self) -> bool:
        """Turns wait for nothing but time: let it pass. False if there is none to wait for."""
        deadline_ns = self.core.next_deadline_ns()
        if not self.core.turns or deadline_ns is None:
            return False
        self._skipped_ns += max(deadline_ns - self.now_ns(), 0)
        return True

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]


def pool_of(executor: Any) -> Any:
    """An executor's GPU KV pool, whatever its pages are made of: [pages, ...]."""
    return executor._pool


def tables_of(executor: Any) -> Any:
    """The page of each layer, turn and block: [layers, lines, blocks]."""
    return executor._tables.pages
