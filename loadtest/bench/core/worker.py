"""What the worker's decisions cost, for `symphony bench core`."""

import statistics
import time
from typing import Any

from services.worker.core.effects import Effect, LoadPages
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.step import Sampled, StepResult
from services.worker.core.turns.request import TurnRequest
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from shared.blocks import BLOCK_TOKENS, chain_keys, root_key
from shared.ids import DEFAULT_TENANT, FrontendId, SessionId, TurnId
from shared.wire.messages import SamplingParams

ROOT = root_key("bench", "bench")
SHORT_CONTEXT = 1000
STEP_NS = 1_000_000


def measure(num_turns: int, context: int, num_layers: int, num_steps: int) -> dict[str, Any]:
    """Milliseconds, and pages a second."""
    figures: dict[str, Any] = {}
    for length in (SHORT_CONTEXT, context):
        bench = WorkerBench(num_turns, length, num_layers)
        figures[f"decode_{length}"] = bench.decode(num_steps)
    return figures | WorkerBench(1, context, num_layers).history()


class WorkerBench:
    """A core whose pool has room for `num_turns` turns and some more."""

    def __init__(self, num_turns: int, context: int, num_layers: int) -> None:
        self._num_turns = num_turns
        self._context = context
        num_blocks = num_turns * (context // BLOCK_TOKENS + 16)
        limits = EngineLimits(
            max_model_len=2 * context, prefill_tokens_max=context, turns_running_max=num_turns
        )
        pool = PagePool(num_blocks * num_layers, num_layers)
        self._core = EngineCore(limits, pool, 1 << 16, frozenset(), BLOCK_TOKENS)
        self._now_ns = 0

    def decode(self, num_steps: int) -> dict[str, float]:
        """Milliseconds of planning and of the result, all turns decoding."""
        for number in range(self._num_turns):
            self._core.on_turn(self._turn(f"t{number}", number), self._now_ns)
            self._step()
        plan_ms: list[float] = []
        result_ms: list[float] = []
        for _ in range(num_steps):
            plan_s, result_s = self._step()
            plan_ms.append(plan_s * 1e3)
            result_ms.append(result_s * 1e3)
        return {
            "plan_ms": round(statistics.median(plan_ms), 3),
            "plan_worst_ms": round(max(plan_ms), 3),
            "result_ms": round(statistics.median(result_ms), 3),
            "result_worst_ms": round(max(result_ms), 3),
        }

    def history(self) -> dict[str, dict[str, float]]:
        """A session comes up, is idle, makes room, and is expected."""
        core = self._core
        took, num_pages = self.come_back("t", 1)
        figures = {name: page_figures(took_s, num_pages) for name, took_s in took.items()}

        other = self._turn("u", 2)
        core.on_turn(other, self._now_ns)
        took_s, _ = _timed(lambda: core.plan_step(self._now_ns))
        figures["make_room"] = page_figures(took_s, num_pages)
        core.on_step(StepResult([Sampled(1)], duration_ns=STEP_NS), self._now_ns)
        core.on_cancel(other.request.turn_id)

        expected = Expected(
            tenant=DEFAULT_TENANT,
            session_id=SessionId("s"),
            priority=1,
            expires_at_ns=1 << 60,
        )
        owner, now_ns = expected.owner, self._now_ns
        absent_turn = self._turn("v", 3)
        absent = chain_keys(ROOT, absent_turn.tokens, BLOCK_TOKENS)
        absent = absent[: absent_turn.num_reusable_blocks]
        staged = self._staged(absent, 2)
        took_s, _ = _timed(lambda: core.stager.expect(staged, (owner, ""), owner, expected, now_ns))
        figures["expect"] = page_figures(took_s, num_pages)
        prefetch_s, effects = _timed(lambda: core.stager.pump(self._now_ns))
        while effects:
            round_s, effects = self._load(effects)
            prefetch_s += round_s
        figures["prefetch"] = page_figures(prefetch_s, num_pages)
        return figures

    def come_back(self, name: str, token: int) -> tuple[dict[str, float], int]:
        """A turn whose history the kvstore has comes, and leaves: seconds by kind of event, and
        pages."""
        core = self._core
        core.write_behind.connect(1)
        turn = self._turn(name, token)
        keys = chain_keys(ROOT, turn.tokens, BLOCK_TOKENS)[: turn.num_reusable_blocks]
        staged = self._staged(keys, 1)
        took: dict[str, float] = {}

        def arrive() -> None:
            core.on_turn(turn, self._now_ns)
            core.on_staged(turn.request.turn_id, 1, staged, self._now_ns)

        took["arrive"], _ = _timed(arrive)
        took["stage"], (plan, effects) = _timed(lambda: core.plan_step(self._now_ns))
        took["loaded"], _ = self._load(effects)
        if plan is None:  # it did not join before its history was here
            plan, _ = core.plan_step(self._now_ns)
            assert plan is not None
        core.on_step(StepResult([Sampled(1)], duration_ns=STEP_NS), self._now_ns)
        took["leave"], _ = _timed(lambda: core.on_cancel(turn.request.turn_id))
        core.write_behind.disconnect()
        return took, len(keys) * core.pool.num_layers

    def _load(self, effects: list[Effect]) -> tuple[float, list[Effect]]:
        """End all loads; how long the core took to hear of them, and what it starts then."""
        runs = [run for each in effects if isinstance(each, LoadPages) for run in each.loads]
        pages = [page for run in runs for page in run.pool_pages]
        return _timed(lambda: self._core.on_loaded(pages, [], self._now_ns) if pages else [])

    def _step(self) -> tuple[float, float]:
        plan_s, (plan, _) = _timed(lambda: self._core.plan_step(self._now_ns))
        assert plan is not None
        self._now_ns += STEP_NS
        sampled = [Sampled(1) if sampling else None for sampling in plan.sampling]
        result = StepResult(sampled, duration_ns=STEP_NS)
        result_s, _ = _timed(lambda: self._core.on_step(result, self._now_ns))
        return plan_s, result_s

    def _staged(self, keys: list[Any], ticket: int) -> Staged:
        layers = range(self._core.pool.num_layers)
        pages = [list(range(len(keys))) for _ in layers]
        return Staged(ticket, keys, pages, [[1] * len(keys) for _ in layers], epoch=1)

    def _turn(self, name: str, token: int) -> Turn:
        request = TurnRequest(
            turn_id=TurnId(name),
            attempt=1,
            frontend_id=FrontendId("bench"),
            tenant=DEFAULT_TENANT,
            session_id=SessionId("s"),
            sampling=SamplingParams(max_tokens=self._context, ignore_eos=True),
            arrived_at_ns=0,
        )
        return Turn(
            request,
            TurnCache(
                owner=request.owner,
                tokens=[token] * self._context,
                block_tokens=BLOCK_TOKENS,
                root=ROOT,
            ),
        )


def _timed(call: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def page_figures(took_s: float, num_pages: int) -> dict[str, float]:
    """Of something that was done to so many pages."""
    return {
        "ms": round(took_s * 1e3, 3),
        "pages": num_pages,
        "pages_per_s": int(num_pages / took_s),
    }
