"""A small engine core, driven by hand: two layers, blocks of four tokens."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from services.worker.core.effects import (
    BlockWrite,
    Effect,
    Emit,
    EmitTokens,
    Ended,
    LoadPages,
    StageTurn,
    StoreBlocks,
)
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import AdmissionName, EngineLimits, LoraStart
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.step import PlannedRow, Sampled, StepPlan, StepResult
from services.worker.core.turns.request import TurnRequest
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from shared.blocks import BlockKey, chain_keys, root_key
from shared.eviction import EvictionName
from shared.ids import DEFAULT_TENANT, FrontendId, SessionId, TurnId
from shared.wire.messages import SamplingParams, StepOutput, TurnDelta, TurnEnd

NUM_LAYERS = 2
BLOCK_TOKENS = 4
END_TOKEN = 0
PLAIN_TOKEN = 9
MS = 1_000_000
ROOT = root_key("model", "tenant")

E = TypeVar("E")


def of_kind(effects: list[Effect], kind: type[E]) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def deltas(effects: list[Effect]) -> list[TurnDelta]:
    """What is sent of turns, in order."""
    said: list[TurnDelta] = []
    for effect in effects:
        if isinstance(effect, Emit):
            said.append(effect.delta)
        elif isinstance(effect, EmitTokens):
            said += StepOutput(tokens=effect.tokens).all()
    return said


def ends(effects: list[Effect]) -> list[TurnEnd]:
    return [effect.end for effect in of_kind(effects, Ended)]


def limited(max_tokens: int, min_tokens: int = 0, **more: list[int] | bool) -> SamplingParams:
    """When a turn ends."""
    stop: list[int] = more.get("stop_token_ids", [])  # type: ignore[assignment]
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stop,
        ignore_eos=bool(more.get("ignore_eos")),
    )


def names(rows: list[PlannedRow]) -> list[str]:
    """Of the turns whose rows they are."""
    return [row.turn_id for row in rows]


def keys_of(tokens: list[int]) -> list[BlockKey]:
    return chain_keys(ROOT, tokens, BLOCK_TOKENS)


def take_pages(pool: PagePool, count: int) -> list[int] | None:
    """Pages for nobody, as a running turn would take them; None if there are not so many."""
    taken: list[int] = pool._take(count).tolist() if count <= pool.num_available else []
    return taken if len(taken) == count else None


def pages_of(turn: Turn, pool: PagePool, num_blocks: int) -> list[list[int]]:
    """Pages of a turn's first blocks, block by block."""
    return [
        pool.pages_of(block) for block in [*turn.cache.prefix.blocks, *turn.cache.own][:num_blocks]
    ]


def staged_blocks(ticket: int, keys: list[BlockKey], num_from_disk: int = 0) -> Staged:
    """An answer with made-up arena pages."""
    pages = [[100 * layer + n for n in range(len(keys))] for layer in range(NUM_LAYERS)]
    generations = [[1] * len(keys) for _ in range(NUM_LAYERS)]
    return Staged(ticket, keys, pages, generations, num_from_disk, epoch=1)


def new_core(
    num_blocks: int = 16,
    *,
    admission: AdmissionName = "eager",
    lora_start: LoraStart = "auto",
    eviction: EvictionName = "layer",
    layerwise: bool = True,
    **limits: int,
) -> EngineCore:
    """A core whose pool holds `num_blocks` whole blocks."""
    limits = {"max_model_len": 1000, **limits}
    pool = PagePool(num_blocks * NUM_LAYERS, NUM_LAYERS, eviction)
    bounds = EngineLimits(
        prefill_admission=admission, lora_start=lora_start, layerwise=layerwise, **limits
    )
    return EngineCore(bounds, pool, 1024, frozenset({END_TOKEN}), BLOCK_TOKENS)


def new_turn(
    name: str,
    tokens: list[int],
    *,
    attempt: int = 1,
    priority: int = 0,
    sampling: SamplingParams | None = None,
    num_generated_before: int = 0,
    session_id: SessionId | None = None,
    num_history: int = 0,
) -> Turn:
    """A turn; one that is of a session leaves its last, partial block to be found as well."""
    request = TurnRequest(
        turn_id=TurnId(name),
        attempt=attempt,
        frontend_id=FrontendId("f"),
        tenant=DEFAULT_TENANT,
        session_id=session_id,
        sampling=sampling or SamplingParams(max_tokens=100),
        arrived_at_ns=0,
        num_generated_before=num_generated_before,
        priority=priority,
    )
    return Turn(
        request,
        TurnCache(
            owner=request.owner,
            tokens=list(tokens),
            block_tokens=BLOCK_TOKENS,
            root=ROOT,
            num_history=num_history,
        ),
    )


@dataclass
class Engine:
    """A core with a clock and an executor that samples what it is told.

    Attributes:
        effects: of everything since the start.
        step_ns: what it is told that a step took.
    """

    core: EngineCore = field(default_factory=new_core)
    now_ns: int = MS
    effects: list[Effect] = field(default_factory=list)
    step_ns: int = MS

    def submit(self, turn: Turn) -> list[Effect]:
        return self.keep(self.core.on_turn(turn, self.now_ns))

    def plan(self) -> StepPlan | None:
        plan, effects = self.core.plan_step(self.now_ns)
        self.keep(effects)
        return plan

    def finish(
        self,
        plan: StepPlan,
        token: int = PLAIN_TOKEN,
        failed: set[int] | None = None,
        broken: dict[int, str] | None = None,
        assist_ns: int = 0,
    ) -> list[Effect]:
        """Let a planned step end."""
        self.now_ns += MS
        failed = failed or set()
        sampled = [
            Sampled(token) if sampling and index not in failed else None
            for index, sampling in enumerate(plan.sampling)
        ]
        result = StepResult(
            sampled, failed, broken or {}, assist_ns=assist_ns, duration_ns=self.step_ns
        )
        return self.keep(self.core.on_step(result, self.now_ns))

    def step(self, token: int = PLAIN_TOKEN, failed: set[int] | None = None) -> list[PlannedRow]:
        """Plan and run a step that must be possible."""
        plan = self.plan()
        assert plan is not None, "nothing can run"
        self.finish(plan, token, failed)
        return plan.rows()

    def run(self, turn: Turn, token: int = PLAIN_TOKEN) -> list[TurnDelta]:
        """One turn from its arrival to its end, on its own."""
        effects = self.submit(turn)
        while turn.request.turn_id in self.core.turns:
            before = len(self.effects)
            self.step(token)
            effects = effects + self.effects[before:]
        return deltas(effects)

    def stages(self) -> list[StageTurn]:
        return of_kind(self.effects, StageTurn)

    def load_all(self, effects: list[Effect], *, is_good: bool = True) -> list[Effect]:
        """End every load that these effects started."""
        runs = [loads for each in of_kind(effects, LoadPages) for loads in each.loads]
        pages = [page for loads in runs for page in loads.pool_pages]
        good, bad = (pages, []) if is_good else ([], pages)
        return self.keep(self.core.on_loaded(good, bad, self.now_ns))

    def write(self) -> list[BlockWrite]:
        """Begin what can be written below now, while no step can be planned."""
        before = len(self.effects)
        assert self.plan() is None
        return [
            write for each in of_kind(self.effects[before:], StoreBlocks) for write in each.writes
        ]

    def store_all(self, *, is_good: bool = True) -> list[Effect]:
        """End every write that has begun."""
        sums = [0] * NUM_LAYERS if is_good else []
        numbers = list(self.core.write_behind._storing)
        return self.keep(self.core.on_stored(dict.fromkeys(numbers, sums)))

    def keep(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects


def stock_of(engine: Engine) -> list[int]:
    """Arena pages that it has leased and not written yet."""
    return engine.core.write_behind._stock


def announce(engine: Engine, session_id: SessionId, **fields: Any) -> list[Effect]:
    """A session's turn is expected, at any time unless told otherwise, for a second."""
    given = {
        "tenant": DEFAULT_TENANT,
        "priority": 1,
        "expires_at_ns": engine.now_ns + 1000 * MS,
        **fields,
    }
    return engine.core.on_expected(Expected(session_id=session_id, **given), engine.now_ns)
