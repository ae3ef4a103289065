"""The worker's engine in one process: production core, step loop and executor, without a network.

What turns say is put into messages as a worker does; they go nowhere.
"""

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

from services.worker.core.effects import Effect, Emit
from services.worker.core.engine import EngineCore
from services.worker.core.limits import EngineLimits
from services.worker.core.pages import PagePool
from services.worker.core.turn import Turn
from services.worker.device.executor import Executor
from services.worker.step_loop import StepLoop
from shared.blocks import root_key
from shared.clock import SystemClock
from shared.dying import die
from shared.ids import DEFAULT_TENANT, FrontendId, TurnId, WorkerId
from shared.messages import SamplingParams, StepOutput, TurnDelta, encode

FRONTEND = FrontendId("local")


@dataclass(slots=True)
class LocalEngine:
    """Runs turns to their ends.

    Attributes:
        said: when tokens were given, ns, and how many at once.
    """

    executor: Executor
    prefill_tokens_max: int
    steps_ahead_max: int = 1
    core: EngineCore = field(init=False)
    said: list[tuple[int, int]] = field(default_factory=list)
    _deltas: list[TurnDelta] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=count)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        info = self.executor.info
        limits = EngineLimits(
            max_model_len=info.max_model_len,
            prefill_tokens_max=self.prefill_tokens_max,
            steps_ahead_max=self.steps_ahead_max,
        )
        pool = PagePool(info.num_pages, info.num_layers)
        self.core = EngineCore(limits, pool, info.page_bytes, info.end_token_ids, info.block_tokens)

    def submit(self, tokens: list[int], max_tokens: int) -> None:
        """A greedy turn that says `max_tokens` tokens."""
        info, now_ns = self.executor.info, SystemClock().now_ns()
        turn = Turn(
            turn_id=TurnId(str(next(self._names))),
            attempt=1,
            frontend_id=FRONTEND,
            tenant=DEFAULT_TENANT,
            session_id=None,
            root=root_key(info.fingerprint, "local"),
            tokens=tokens,
            num_generated_before=0,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            arrived_at_ns=now_ns,
            block_tokens=info.block_tokens,
        )
        self._perform(self.core.on_turn(turn, now_ns))

    def run(self) -> None:
        """Until no turn is left."""
        with ThreadPoolExecutor(1) as thread:
            asyncio.run(self._run(thread))

    async def _run(self, thread: ThreadPoolExecutor) -> None:
        loop = StepLoop(
            self.core, SystemClock(), self.executor, thread, self._perform, self._send, die
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(loop.run())
            await self._is_over.wait()
            running.cancel()

    def _perform(self, effects: list[Effect]) -> None:
        deltas = [effect.delta for effect in effects if isinstance(effect, Emit)]
        if deltas:
            self.said.append((SystemClock().now_ns(), len(deltas)))
            self._deltas += deltas

    async def _send(self) -> None:
        if self._deltas:
            encode(StepOutput(worker_id=WorkerId("local"), deltas=self._deltas))
            self._deltas = []
        if not self.core.is_busy:
            self._is_over.set()


def some_prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    """Tokens from a seed."""
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length)]
