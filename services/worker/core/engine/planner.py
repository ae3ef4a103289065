"""The plan of one step.

Decodes first: each running turn that has its whole context gets one row. Then prompts, in chunks
that share one token budget: those under way, then waiting turns in order of priority and arrival,
if `admission` lets them in now. An urgent one may have others paused (`pausing`). A decode that
finds no page preempts the turn that came last; a waiting turn is admitted only when pages for its
whole prompt are there, so that it is not preempted at once.

A step may be planned while another is in flight. Its rows begin where those in flight will end, and
a token that is still to be chosen is carried over on the device. Nothing is taken from a turn that
a step in flight has a row of: what would take it waits until nothing is in flight.
"""

from dataclasses import dataclass, field, replace
from itertools import islice

from services.worker.core.adapters.adapters import AHEAD_MAX, Adapters, Readiness
from services.worker.core.adapters.streaming import FirstPass
from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.joining import gains, patience_ns, stall_ns
from services.worker.core.costs.step_models import NO_LORA, LoraLoad
from services.worker.core.effects import Effect
from services.worker.core.engine.admission import Decision
from services.worker.core.engine.pausing import Pausing
from services.worker.core.engine.rows import Row, by_adapter, step_plan
from services.worker.core.kv.pages import Block
from services.worker.core.kv.residency import Residency
from services.worker.core.step import StepPlan
from services.worker.core.turns.history import History
from services.worker.core.turns.queue import TurnQueue
from services.worker.core.turns.turn import Turn, TurnState

LOOKS = 4  # at a prompt whose history is loading, while what is left of its wait halves or so


@dataclass(slots=True)
class PlannedStep:
    """A plan, and whose turns its rows are.

    Attributes:
        num_prefill, num_decodes: the plan's, which counts again at each call.
        tickets: of what the step may read in the arena, kept until it has landed.
        retired: blocks that are not needed any more once the step has landed.
        takes_ns: how long it will probably run.
        ends_at_ns: when it will probably have landed.
        lora: the adapters that it reads.
        stall_ns: how long it will probably wait for history.
    """

    plan: StepPlan
    turns: list[Turn]
    num_prefill: int
    num_decodes: int
    tickets: list[int] = field(default_factory=list)
    retired: list[Block] = field(default_factory=list)
    takes_ns: int = 0
    ends_at_ns: int = 0
    lora: LoraLoad = NO_LORA
    stall_ns: int = 0


@dataclass(slots=True)
class Draft:
    """A plan as it grows.

    Attributes:
        is_ahead: a step is in flight.
        is_short: a turn was left out because it needs pages that others have.
        lost: turns whose adapter cannot be loaded.
        budget: prompt tokens that the step can still take.
        num_kept: tokens that each prompt keeps back.
        starts_at_ns: when it will probably begin.
    """

    now_ns: int
    starts_at_ns: int
    budget: int
    is_ahead: bool
    is_short: bool = False
    num_kept: int = 0
    rows: list[Row] = field(default_factory=list)
    lost: list[Turn] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


@dataclass(slots=True)
class Planner:
    """Fills a step: `begin` with the decodes, `add_prompts`, `end`."""

    queue: TurnQueue
    history: History
    adapters: Adapters
    costs: StepCosts
    prefill_tokens_max: int
    is_layerwise: bool = True
    num_preemptions: int = field(default=0, init=False)
    residency: Residency = field(init=False)
    pausing: Pausing = field(init=False)

    def __post_init__(self) -> None:
        self.residency = self.history.residency
        self.pausing = Pausing(self.queue, self.history, self.adapters)

    @property
    def num_pauses(self) -> int:
        """Turns that made way for an urgent one, counted since the start."""
        return self.pausing.num_pauses

    def begin(self, now_ns: int, starts_at_ns: int, *, is_ahead: bool) -> Draft:
        """A step with every turn that decodes."""
        draft = Draft(now_ns, starts_at_ns, self.prefill_tokens_max, is_ahead)
        for turn in list(self.queue.running):
            if turn.is_decoding and turn.can_run:
                self._add_decode(turn, draft)
        return draft

    def add_prompts(self, draft: Draft, decision: Decision) -> None:
        """Prompts, as far as the decision and the budget go."""
        draft.num_kept = decision.num_kept
        if len(draft.rows) < len(self.queue.running):  # else all of them decode
            for turn in list(self.queue.running):
                if draft.budget > 0 and turn.can_run and not _is_decode(turn):
                    self._add_chunk(turn, draft)
        is_idle = not (draft.rows or draft.is_ahead)
        if decision.opens or is_idle:  # where nothing runs, nothing would trigger another plan
            self._add_waiting(draft)

    def end(self, draft: Draft) -> PlannedStep | None:
        """The plan; None when there is nothing to run."""
        if not draft.rows:
            return None
        rows = by_adapter(draft.rows) if self.adapters.images else draft.rows
        turns = [row.turn for row in rows]
        adapters, stager = self.adapters, self.residency.stager
        sources = adapters.assists(turn.adapter for turn in turns)
        streams = adapters.streams(turn.adapter for turn in turns)
        plan = step_plan(rows, self.residency.pool, streams, sources)
        if plan.awaited:
            plan = self._with_patience(plan, rows, draft)
        for row in rows:
            row.turn.on_planned(row.end)
        tickets = [source.ticket for source in sources.values()]
        for ticket in tickets:
            stager.hold(ticket)
        stall_ns = max([row.stall_ns for row in rows])
        num_decodes = plan.num_decodes
        return PlannedStep(
            plan,
            turns,
            plan.num_tokens - num_decodes,
            num_decodes,
            tickets,
            lora=self._lora_load(turns),
            stall_ns=stall_ns,
        )

    def _lora_load(self, turns: list[Turn]) -> LoraLoad:
        if not self.adapters.images:
            return NO_LORA
        images = [turn.adapter.image for turn in turns if turn.adapter.image is not None]
        if not images:
            return NO_LORA
        ranks = [image.adapter.lora_rank for image in images]
        num_blocks = sum(image.num_blocks for image in set(images))
        num_bytes = num_blocks * self.residency.pool.num_layers * self.adapters.loading.page_bytes
        return LoraLoad(len(images), max(ranks), sum(ranks), num_bytes)

    def preempt(self, turn: Turn, now_ns: int) -> list[Effect]:
        """Take a running turn's pages; it comes back first, with what it generated so far."""
        self.num_preemptions += 1
        return self._restart(turn, now_ns)

    def recompute(self, turn: Turn, now_ns: int) -> list[Effect]:
        """History did not come: the turn keeps what is surely here and computes the rest."""
        self.residency.give_up(turn.cache.prefix)
        turn.cache.num_cached = 0
        return self._restart(turn, now_ns)

    def again(self, turn: Turn, now_ns: int) -> list[Effect]:
        """What a turn computed last is void: something of it was not there, or not in time. History
        that may yet come is waited for, outside of passes."""
        assert not turn.num_flights, "a step in flight reads its pages"
        if not self.residency.settle(turn.cache.prefix):
            return self.recompute(turn, now_ns)
        if not self.adapters.is_good(turn.adapter):
            return self._restart(turn, now_ns)
        turn.on_void()
        return []

    def outgrow(self, turn: Turn, now_ns: int) -> list[Effect]:
        """A running turn's next token makes its sequence a long one: all of it is computed again,
        as one whose prompt is that long is from its start."""
        assert not turn.num_flights, "a step in flight reads its pages"
        effects = self._put_back(turn)
        turn.cache.on_outgrown(turn.length)
        turn.cache.num_history = 0  # what its session left is of a short sequence
        return effects + self.history.look_up(turn, now_ns)

    def _restart(self, turn: Turn, now_ns: int) -> list[Effect]:
        assert not turn.num_flights, "a step in flight reads its pages"
        return self._put_back(turn) + self.history.look_up(turn, now_ns)

    def _put_back(self, turn: Turn) -> list[Effect]:
        effects = self.history.release(turn)
        turn.prompt_logprobs = []
        self.adapters.stop(turn.adapter)
        self.queue.put_back(turn)
        return effects

    def _add_waiting(self, draft: Draft) -> None:
        for turn in list(self.queue.waiting):
            if draft.budget <= 0:
                break
            if turn.cache.prefix.is_asked:
                continue
            if self.queue.is_full and not self._victims(turn):
                break
            if turn.is_paused:
                effects = self.pausing.resume(turn, self.reserve, draft.now_ns)
                if effects is None:
                    break
                draft.effects += effects
                if turn.cache.prefix.is_asked:
                    continue
            match self._bring_adapter(turn, draft):
                case Readiness.COMING:
                    continue  # others may pass it meanwhile
                case Readiness.LOST:
                    draft.lost.append(turn)
                    continue
                case Readiness.SHORT:
                    break
            # Not before its adapter is here: another turn would take the seat meanwhile.
            if self.queue.is_full and not self._make_way(turn, draft):
                break
            if not self._admit(turn, draft):
                break
            self._add_chunk(turn, draft)
        first = islice(self.queue.waiting, AHEAD_MAX)
        draft.effects += self.adapters.prepare((turn.adapter for turn in first), draft.now_ns)

    def _bring_adapter(self, turn: Turn, draft: Draft) -> Readiness:
        """Get on with a waiting turn's adapter. If it finds no pages, no later turn may pass it."""
        adapters, effects = self.adapters, draft.effects
        if turn.adapter.image is None:
            return Readiness.READY
        num_pages = self.history.num_pages_wanted(turn) + self.reserve
        first = self._first_pass(turn, draft)
        readiness = adapters.bring(turn.adapter, num_pages, first, draft.now_ns, effects)
        if readiness is Readiness.SHORT and (
            self._make_way(turn, draft) or self._make_room(turn, draft)
        ):
            readiness = adapters.bring(turn.adapter, 0, first, draft.now_ns, effects)
        return readiness

    def _first_pass(self, turn: Turn, draft: Draft) -> FirstPass:
        """What a waiting turn would begin with in this step."""
        num_tokens = max(min(draft.budget, len(turn.tokens) - turn.num_in_sight), 1)
        num_assisted = sum(
            row.end - row.start
            for row in draft.rows
            if row.turn.adapter.image is not None and row.turn.adapter.image.is_assisted
        )
        is_known = self.costs.is_known
        lora = self._lora_load([*(row.turn for row in draft.rows), turn])
        step_ns = self.costs.step_ns(num_tokens, len(draft.rows), lora.num_bytes)
        return FirstPass(num_assisted + num_tokens, step_ns if is_known else 0)

    def _add_chunk(self, turn: Turn, draft: Draft) -> None:
        """A chunk of a prompt, within the budget, if its history is here in time."""
        num_tokens = min(draft.budget, len(turn.tokens) - turn.num_planned - draft.num_kept)
        if num_tokens <= 0:
            return  # all but what it keeps back is computed
        wait_ns = 0
        if turn.cache.prefix.coming and not turn.num_flights:
            is_lost = not self.residency.settle(turn.cache.prefix)
            if is_lost or self.history.is_overdue(turn, draft.now_ns, len(draft.rows)):
                draft.effects += self.recompute(turn, draft.now_ns)
                return
            left_ns = self._wait_ns(turn, num_tokens, draft) if turn.cache.prefix.coming else 0
            if left_ns is None:
                return  # let the others run while it arrives
            wait_ns = left_ns
        if self._add_row(turn, num_tokens, draft, wait_ns):
            draft.budget -= num_tokens

    def _wait_ns(self, turn: Turn, num_tokens: int, draft: Draft) -> int | None:
        """How long a pass would wait for a prompt's history; None: it is not to be in this step."""
        costs, num_others = self.costs, len(draft.rows)
        if draft.now_ns < turn.look_not_before_ns:
            return None
        turn.look_again_at_ns = turn.cache.prefix.give_up_at_ns
        if not self.is_layerwise or self.residency.is_late(turn.cache.prefix):
            return None
        arrivals = self.history.arrivals(turn, draft.now_ns)
        if not costs.is_known and num_others:
            return None if arrivals[0] else 0
        pass_ns = costs.step_ns(num_tokens, num_others)
        wait_ns = stall_ns(arrivals, draft.starts_at_ns, pass_ns)
        if gains(wait_ns, num_others, costs.step_ns(0, num_others)):
            return wait_ns
        turn.look_again_at_ns = draft.starts_at_ns + wait_ns
        turn.look_not_before_ns = draft.now_ns + wait_ns // LOOKS
        return None

    def _with_patience(self, plan: StepPlan, rows: list[Row], draft: Draft) -> StepPlan:
        """The plan, and how long its pass may wait for each row's history."""
        costs, num_others = self.costs, len(rows) - 1
        step_ns, patience = costs.step_ns(0, num_others), {}
        for index in plan.awaited:
            row = rows[index]
            give_up_in_ns = row.turn.cache.prefix.give_up_at_ns - draft.starts_at_ns
            patience[index] = patience_ns(row.stall_ns, num_others, step_ns, give_up_in_ns)
        return replace(
            plan,
            patience_ns=patience,
            starts_in_ns=draft.starts_at_ns - draft.now_ns,
            pass_ns=costs.step_ns(plan.num_tokens, 0) if costs.is_known else 0,
        )

    def _add_decode(self, turn: Turn, draft: Draft) -> None:
        """A row of one token, unless something has to land before; mostly nothing of what a row may
        need has to be looked after."""
        start, cache = turn.num_planned, turn.cache
        if _has_to_end(turn):
            return
        if cache.prefix.coming:
            if not _is_decode(turn):
                return
        elif turn.adapter.image is None and start < cache.num_blocks * cache.block_tokens:
            draft.rows.append(Row(turn, start, start + 1, []))
            return
        self._add_row(turn, 1, draft)

    def _add_row(self, turn: Turn, num_tokens: int, draft: Draft, wait_ns: int = 0) -> bool:
        """Make sure of the pages for `num_tokens` more tokens and add the row."""
        residency, prefix = self.residency, turn.cache.prefix
        if prefix.coming and not residency.settle(prefix):
            if not turn.num_flights:
                draft.effects += self.recompute(turn, draft.now_ns)
            return False
        if not self.adapters.is_good(turn.adapter):
            if not turn.num_flights:
                draft.effects += self._restart(turn, draft.now_ns)
            return False
        end = turn.num_planned + num_tokens
        while (num_lacking := -(-end // turn.cache.block_tokens) - turn.cache.num_blocks) > 0:
            blocks = residency.pool.allocate(num_lacking)
            if not blocks:
                if self.adapters.give_way(draft.effects):
                    continue
                num_short = residency.pool.num_layers - residency.num_available
                if residency.stager.call_back(num_short, draft.now_ns, draft.effects):
                    return False
                if draft.is_ahead:
                    draft.is_short = True
                    return False
                victim = self.queue.victim()
                draft.effects += self.preempt(victim, draft.now_ns)
                draft.rows = [row for row in draft.rows if row.turn is not victim]
                if victim is turn:
                    return False
                continue
            turn.cache.add_blocks(blocks)
        # Behind a row in flight there is nothing to wait for: that one has waited, or this is void.
        awaited = [] if turn.num_flights else residency.awaited(prefix)
        draft.rows.append(Row(turn, turn.num_planned, end, awaited, wait_ns))
        return True

    def _admit(self, turn: Turn, draft: Draft) -> bool:
        """Move a waiting turn into the batch if there are pages for its whole prompt."""
        history, residency = self.history, self.residency
        if not residency.settle(turn.cache.prefix):
            draft.effects += history.release(turn)
        history.acquire_resident(turn)
        history.tails.leave_shared(turn)
        num_wanted = history.num_pages_wanted(turn) + self.reserve
        is_short = residency.num_available < num_wanted
        can_wait = is_short and not self._make_way(turn, draft)
        if can_wait and not self._make_room(turn, draft):
            num_short = num_wanted - residency.num_available
            residency.stager.call_back(num_short, draft.now_ns, draft.effects)
            history.write_behind.is_short = True
            return False
        draft.effects += history.load_staged(turn)
        history.tails.claim(turn)
        history.trust(turn, draft.now_ns, len(self.queue.running))
        if turn.trace.first_step_at_ns is None:
            turn.cache.num_cached = turn.num_computed
            history.num_prefix_hits += len(turn.cache.prefix.blocks)
        self.queue.start(turn)
        self.adapters.start(turn.adapter)
        turn.state = TurnState.RUNNING
        return True

    @property
    def reserve(self) -> int:
        """Pages that running turns may soon take."""
        return len(self.queue.running) * self.residency.pool.num_layers

    def _make_way(self, turn: Turn, draft: Draft) -> bool:
        """Pause others for an urgent turn that waits for a seat or for pages."""
        victims = self._victims(turn)
        if draft.is_ahead:
            draft.is_short |= bool(victims)
            return False
        for victim in victims:
            draft.effects += self.pausing.pause(victim)
        draft.rows = [row for row in draft.rows if row.turn not in victims]
        return bool(victims)

    def _victims(self, turn: Turn) -> list[Turn]:
        """Whom an urgent turn would have paused."""
        num_pages = self.history.num_pages_wanted(turn) + self.adapters.num_pages_wanted(
            turn.adapter
        )
        return self.pausing.victims(turn, num_pages + self.reserve)

    def _make_room(self, turn: Turn, draft: Draft) -> bool:
        """Where nothing runs, only what waiting turns hold, and blocks for which the kvstore has no
        room, can stand in the way of `turn`."""
        if self.queue.running:
            return False
        history, residency, effects = self.history, self.residency, draft.effects
        for other in self.queue.waiting:
            if other is not turn:
                effects += history.release(other)
        effects += self.adapters.make_room(turn.adapter)
        num_wanted = history.num_pages_wanted(turn) + self.adapters.num_pages_wanted(turn.adapter)
        if residency.num_available < num_wanted:
            history.write_behind.give_up_unwritten()
        return residency.num_available >= num_wanted


def _has_to_end(turn: Turn) -> bool:
    """Whether what is in flight of a turn that decodes has to land before anything else of it: it
    is over then, or its KV is not what it goes on with."""
    if turn.num_sampling and turn.awaits_last:
        return True
    return turn.cache.short_rope_max > 0 and turn.outgrows_short


def _is_decode(turn: Turn) -> bool:
    """Whether a turn that runs has a row in any step. One whose history is still loading has
    not, however little is left to compute, until a pass waits for that."""
    if not turn.is_decoding:
        return False
    if turn.num_flights:
        return True
    coming = turn.cache.prefix.coming
    return not coming or not any(block.loading or block.lost for block in coming)
