"""The engine's decisions: which turns run in the next step, on which pages, and what becomes of
their KV. Pure: events and the time go in, effects and step plans come out.

The methods stand in a turn's order: `on_turn` looks up its history and queues it, `on_staged` takes
the kvstore's answer, `plan_step` gives it a row in the steps that it needs, `on_loaded` notes that
its history has arrived, `on_step` appends a token and perhaps ends it, `on_stored` and
`on_committed` follow its KV to the tiers below.

The shell's loop: pass events, `plan_step` when `plan_at_ns` has come, run the plans in their order,
`on_step` as each lands. While one step runs the next is planned, as late as possible, so that turns
that arrive meanwhile are in it. A turn that ends while a step in flight has a row of it keeps its
pages until that step has landed.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.adapters.loading import ImageLoading
from services.worker.core.adapters.stats import AdapterTimes
from services.worker.core.adapters.streaming import StartModes
from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.speeds import speeds_of
from services.worker.core.effects import Effect, ReleaseTicket
from services.worker.core.engine.admission import Admission
from services.worker.core.engine.announcements import Announcements
from services.worker.core.engine.landing import Landing
from services.worker.core.engine.planner import PlannedStep, Planner
from services.worker.core.engine.steps_in_flight import StepsInFlight
from services.worker.core.engine_limits import EngineLimits, Estimates
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.residency import Residency
from services.worker.core.kv.staged import Staged
from services.worker.core.kv.staging import Stager
from services.worker.core.kv.write_behind import WriteBehind
from services.worker.core.step import StepPlan, StepResult
from services.worker.core.turns.forgetting import forget_session
from services.worker.core.turns.history import History
from services.worker.core.turns.outcome import error, refuse
from services.worker.core.turns.queue import TurnQueue
from services.worker.core.turns.turn import Turn
from shared.blocks import BlockKey
from shared.ids import HostId, ModelId, TurnId
from shared.owners import OwnerKey
from shared.wire.messages import ModelSpeeds, TurnRef


@dataclass(slots=True)
class EngineCore:
    """One model on one worker.

    Attributes:
        page_bytes: of one pool page.
        end_token_ids: tokens that end a turn unless it asked to ignore them.
        fingerprint: the model's, for the keys of its adapters' images.
        stored_page_bytes: of one page below the pool, for the fetch-or-recompute decision; 0: the
            same.
    """

    limits: EngineLimits
    pool: PagePool
    page_bytes: int
    end_token_ids: frozenset[int]
    block_tokens: int
    fingerprint: str = ""
    stored_page_bytes: int = 0
    estimates: Estimates = field(default_factory=Estimates, init=False)
    costs: StepCosts = field(default_factory=StepCosts, init=False)
    residency: Residency = field(init=False)
    stager: Stager = field(init=False)
    write_behind: WriteBehind = field(init=False)
    history: History = field(init=False)
    adapters: Adapters = field(init=False)
    queue: TurnQueue = field(init=False)
    planner: Planner = field(init=False)
    steps: StepsInFlight = field(init=False)
    admission: Admission = field(init=False)
    announcements: Announcements = field(init=False)
    landing: Landing = field(init=False)

    def __post_init__(self) -> None:
        limits, pool, costs, estimates = self.limits, self.pool, self.costs, self.estimates
        self.stored_page_bytes = self.stored_page_bytes or self.page_bytes
        self.residency = residency = Residency(pool)
        self.stager = residency.stager
        self.write_behind = write_behind = WriteBehind(pool, limits.lease_target_blocks)
        self.history = History(
            residency, write_behind, estimates, costs, limits, self.stored_page_bytes,
            self.block_tokens,
        )  # fmt: skip
        self.queue = TurnQueue(limits.turns_running_max)
        loading = ImageLoading(
            residency, write_behind, estimates, StartModes(limits.lora_start), self.fingerprint,
            self.page_bytes, is_stored=self.stored_page_bytes == self.page_bytes,
        )  # fmt: skip
        self.adapters = Adapters(residency, loading, limits.turns_running_max)
        self.planner = Planner(
            self.queue, self.history, self.adapters, costs, limits.prefill_tokens_max,
            limits.layerwise,
        )  # fmt: skip
        self.steps = StepsInFlight(
            pool, costs, estimates, loading.start_modes, limits.steps_ahead_max
        )
        self.admission = Admission(limits, self.queue, self.history, self.adapters, costs)
        self.landing = Landing(
            self.queue, self.history, self.adapters, self.planner, self.steps, self.admission,
            self.end_token_ids,
        )  # fmt: skip
        self.announcements = Announcements(
            self.stager, write_behind, self.adapters, estimates, limits.max_model_len,
            self.block_tokens, self._block_bytes,
        )  # fmt: skip

    @property
    def turns(self) -> dict[TurnId, Turn]:
        """The latest attempt of each turn that is not over."""
        return self.queue.turns

    @property
    def waiting(self) -> "deque[Turn]":
        return self.queue.waiting

    @property
    def running(self) -> list[Turn]:
        return self.queue.running

    @property
    def flights(self) -> "deque[PlannedStep]":
        """Steps that were planned and have not landed, in order."""
        return self.steps.flights

    # What it has, for reports.

    @property
    def num_turns(self) -> int:
        return len(self.queue.turns)

    @property
    def is_busy(self) -> bool:
        """Whether turns are held, or steps in flight."""
        return bool(self.queue.turns or self.steps.flights)

    @property
    def has_unwritten(self) -> bool:
        """Whether blocks wait to be copied below."""
        return self.write_behind.num_unwritten > 0

    def has_turn_of(self, owner: OwnerKey) -> bool:
        """Whether a turn of this session is held."""
        return any(turn.request.owner == owner for turn in self.queue.turns.values())

    @property
    def tokens_max(self) -> int:
        """Tokens, prompt and output together, that one turn of the base model can have here."""
        return self._tokens_max_beside(0)

    def _tokens_max_beside(self, num_image_blocks: int) -> int:
        num_blocks = self.pool.num_pages // self.pool.num_layers - num_image_blocks
        return min(self.limits.max_model_len, num_blocks * self.block_tokens)

    @property
    def _block_bytes(self) -> int:
        """Of one block below the pool."""
        return self.stored_page_bytes * self.pool.num_layers

    @property
    def num_waiting_tokens(self) -> int:
        """See `TurnQueue.num_waiting_tokens`."""
        return self.queue.num_waiting_tokens

    def refs(self) -> list[TurnRef]:
        """Every attempt held here."""
        return [turn.ref() for turn in self.queue.turns.values()]

    def speeds(self, model_id: str) -> ModelSpeeds:
        """How fast it is, under the model's name."""
        load_ns = self.adapters.stats.mean_load_ns
        name = ModelId(model_id)
        return speeds_of(name, self.costs, self.estimates, self._block_bytes, load_ns)

    def take_adapter_times(self) -> AdapterTimes:
        """How long adapters took to load, and turns on them to their first token, since the last
        call."""
        return self.adapters.stats.take()

    def take_used(self) -> list[BlockKey]:
        """Blocks that turns ran on since the last call, see `History.take_used`."""
        return self.history.take_used()

    # Turns come and go.

    def on_turn(self, turn: Turn, now_ns: int) -> list[Effect]:
        """A turn with its prompt. A later attempt replaces an earlier one."""
        effects: list[Effect] = []
        if (old := self.turns.get(turn.request.turn_id)) is not None:
            if old.request.attempt >= turn.request.attempt:
                return []
            effects += self.landing.end(old, "cancelled")
        tokens_max = self._tokens_max_beside(turn.adapter.num_image_blocks)
        turn.length_max = min(tokens_max, turn.num_prompt + turn.request.sampling.max_tokens)
        turn.cache.short_rope_max = self.limits.short_rope_max
        if len(turn.tokens) >= tokens_max:
            return effects + self._refuse_long(turn, tokens_max)
        if self.num_turns >= self.limits.turns_running_max + self.limits.turns_waiting_max:
            return effects + refuse(turn, "overloaded", "too many turns wait on this worker")
        if turn.outgrows_short:
            turn.cache.on_outgrown(turn.length)
        self.queue.add(turn)
        for owner in turn.request.announcements:
            self.announcements.withdraw(owner)
            self.stager.on_arrived(owner)
        effects += self.adapters.use(turn.adapter, now_ns)
        return effects + self.history.look_up(turn, now_ns)

    def _refuse_long(self, turn: Turn, tokens_max: int) -> list[Effect]:
        """There is no room for its prompt and a token, whatever else is here."""
        use = turn.adapter
        if use.ref is not None and tokens_max <= 0:
            num_blocks = self.pool.num_pages // self.pool.num_layers
            message = (
                f"adapter {use.ref.name}: it takes {use.num_image_blocks} blocks; the KV pool of "
                f"this worker has {num_blocks}"
            )
            return refuse(turn, "adapter_too_large", message)
        beside = " beside its adapter" if use.num_image_blocks else ""
        message = (
            f"the prompt has {len(turn.tokens)} tokens; this worker takes "
            f"{max(tokens_max - 1, 0)}{beside}"
        )
        return refuse(turn, "context_length_exceeded", message)

    def on_cancel(self, turn_id: TurnId, attempt: int = 0, num_kept: int = 0) -> list[Effect]:
        """The client has disconnected, or has enough. `attempt` spares later ones; 0 spares none.

        Args:
            num_kept: of its tokens, that the session's next turn begins with; 0: none goes on.
        """
        turn = self.turns.get(turn_id)
        if turn is None or (attempt and turn.request.attempt > attempt):
            return []
        turn.cache.num_kept = num_kept
        return self.landing.end(turn, "cancelled")

    def on_forget(self, owner: OwnerKey, keys: list[BlockKey]) -> tuple[int, list[Effect]]:
        """A session was deleted; `keys` are its record's. Also returns how many blocks of it were
        here."""
        self.announcements.withdraw(owner)
        return forget_session(self.history, (*self.running, *self.waiting), owner, keys)

    def on_expected(self, expected: Expected, now_ns: int) -> list[Effect]:
        """A turn was announced, and is to come here."""
        return self.announcements.on_announced(expected, now_ns)

    def on_unexpected(self, owner: OwnerKey) -> list[Effect]:
        """The session's turn is not coming, or not here."""
        self.announcements.withdraw(owner)
        return self.stager.forget(owner)

    # History is loaded.

    def on_kv_connected(self, epoch: int) -> None:
        """There is a connection to the kvstore, numbered `epoch`."""
        self.write_behind.connect(epoch)

    def on_kv_disconnected(self) -> None:
        """The kvstore is away: nothing waits for it."""
        self.write_behind.disconnect()

    def on_source(self, bytes_per_s: float, of_peers: Mapping[HostId, float]) -> None:
        """The kvstore's measured speeds into the arena: from its own tiers, and from peers."""
        self.estimates.on_source(bytes_per_s, of_peers)

    def on_staged(
        self, turn_id: TurnId, attempt: int, staged: Staged | None, now_ns: int
    ) -> list[Effect]:
        """The kvstore's answer for a turn; None if it could not be asked."""
        turn = self.turns.get(turn_id)
        if turn is None or turn.request.attempt != attempt:
            return [] if staged is None else [ReleaseTicket(staged.ticket)]
        if staged is not None:
            turn.trace.staged_at_ns, turn.trace.num_staged = now_ns, staged.num_blocks
        return self.history.on_staged(turn, self._stamped(staged, now_ns), len(self.running))

    def on_image_staged(self, number: int, staged: Staged | None, now_ns: int) -> list[Effect]:
        """The kvstore's answer for an adapter's image; None if it could not be asked."""
        staged = self._stamped(staged, now_ns)
        return self.adapters.on_staged(number, staged, self.planner.reserve, now_ns)

    def on_session_staged(self, number: int, staged: Staged | None, now_ns: int) -> list[Effect]:
        """The kvstore's answer for an announced session; None if it could not be asked."""
        return self.announcements.on_staged(number, self._stamped(staged, now_ns), now_ns)

    def _stamped(self, staged: Staged | None, now_ns: int) -> Staged | None:
        """An answer of the kvstore, whose promises count from now."""
        if staged is None:
            return None
        self.estimates.on_source(staged.source_bytes_per_s)
        return replace(staged, heard_at_ns=now_ns) if staged.ready_in_ns else staged

    def on_loaded(self, good: list[int], bad: list[int], now_ns: int) -> list[Effect]:
        """Loads into these pool pages, or builds of them, ended."""
        if good:
            self.history.landed_at_ns = now_ns
        effects = self.stager.on_loaded(good, is_good=True)
        effects += self.stager.on_loaded(bad, is_good=False)
        effects += self.adapters.on_loaded(now_ns)
        return effects + self.stager.pump(now_ns)

    def on_load_measured(self, num_bytes: int, duration_ns: int) -> None:
        """So many bytes were copied from the arena into the pool."""
        self.estimates.on_load(num_bytes, duration_ns)

    def on_called_back(self, pages: list[int]) -> list[Effect]:
        """The requested recall succeeded: nothing is loaded into these pool pages."""
        return self.stager.on_called_back(pages)

    # Steps.

    def set_assist_tokens(self, num_tokens: int) -> None:
        """New tokens of a step that helpers can take now; 0: there are no helpers."""
        self.adapters.loading.start_modes.assist_tokens = num_tokens

    def plan_at_ns(self) -> int | None:
        """When to plan the next step, see `StepsInFlight.plan_at_ns`; None: one has to land."""
        return self.steps.plan_at_ns()

    def step_limit_ns(self, plan: StepPlan) -> int:
        """How long a step may run before it counts as stuck."""
        return self.steps.limit_ns(plan)

    def plan_step(self, now_ns: int) -> tuple[StepPlan | None, list[Effect]]:
        """Decide the next step; None when nothing can run now."""
        starts_at_ns = self.steps.starts_at_ns(now_ns)
        self.pool.on_time(now_ns)
        for turn in self.waiting:
            turn.cache.prefix.on_time(now_ns)
        self.adapters.on_time(now_ns)
        effects = self.write_behind.pump(now_ns)
        effects += self.announcements.ask_for_due(now_ns)
        self.stager.is_paused = False
        draft = self.planner.begin(now_ns, starts_at_ns, is_ahead=bool(self.flights))
        self.planner.add_prompts(draft, self.admission.decide(len(draft.rows), starts_at_ns))
        planned = self.planner.end(draft)
        self.steps.is_short = draft.is_short
        effects += draft.effects
        for turn in draft.lost:
            why = (
                f"the adapter {turn.adapter.ref.name!r} cannot be loaded"
                if turn.adapter.ref
                else ""
            )
            effects += [
                error(turn, "adapter_unavailable", why), *self.landing.end(turn, "error")
            ]  # fmt: skip
        effects += self.stager.pump(now_ns)
        if planned is None:
            self.steps.on_nothing_to_run()
            return None, effects
        self.steps.add(planned, starts_at_ns, now_ns)
        return planned.plan, effects

    def on_step(self, result: StepResult, now_ns: int) -> list[Effect]:
        """The first step in flight has run."""
        planned = self.steps.land(result, now_ns)
        plan = planned.plan
        effects: list[Effect] = []
        for ticket in planned.tickets:
            effects += self.stager.let_go(ticket)
        ends: list[int] = plan.context_lens.tolist()
        rows = zip(planned.turns, ends, plan.sampling, strict=True)
        for index, (turn, end, sampling) in enumerate(rows):
            turn.on_landed(is_sampled=sampling is not None)
            if result.stall_at_ns and turn.trace.context:
                turn.trace.add_waits(result)
            if not turn.is_void:
                effects += self.landing.on_row(turn, index, end, result, now_ns)
            if not turn.num_flights:
                effects += self.landing.settle(turn, now_ns)
        effects += self.landing.take_next_tokens()
        self.pool.give_back(planned.retired)
        if not self.running:
            self.steps.device_time.on_nothing_to_run()
        return effects

    def next_deadline_ns(self) -> int | None:
        """When to plan again although nothing happens: an answer of the kvstore is overdue, history
        is, an announced session did not come or is near, arena pages may be there again."""
        deadlines = (
            self.queue.next_deadline_ns(),
            self.stager.next_expiry_ns,
            self.announcements.expecting.next_at_ns,
            self.write_behind.next_ask_at_ns,
            self.adapters.next_deadline_ns,
        )
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    # New KV goes below.

    def on_leased(self, arena_pages: list[int]) -> None:
        """Arena pages to write new KV into."""
        self.write_behind.on_leased(arena_pages)

    def on_stored(self, checksums: dict[int, list[int]]) -> list[Effect]:
        """Copies to the arena ended: by `BlockWrite.number`, xxh3-64 of each layer's page; empty
        for a write that could not be made."""
        return self.write_behind.on_stored(checksums)

    def on_committed(self, keys: list[BlockKey]) -> None:
        """The kvstore took these blocks over."""
        self.write_behind.on_committed(keys)

    def on_refused(self, keys: list[BlockKey]) -> None:
        """The kvstore did not take these blocks."""
        self.write_behind.on_refused(keys)
