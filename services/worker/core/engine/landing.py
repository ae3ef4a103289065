"""What a step's results mean for its turns: tokens, blocks that others can find, ends."""

from collections import defaultdict
from dataclasses import dataclass, field

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.effects import Effect, Emit, EmitTokens, ReportSoon
from services.worker.core.engine.admission import Admission
from services.worker.core.engine.planner import Planner
from services.worker.core.engine.steps_in_flight import StepsInFlight
from services.worker.core.step import Sampled, StepResult
from services.worker.core.turns.history import History
from services.worker.core.turns.outcome import ended, error, finish_reason, token_delta
from services.worker.core.turns.queue import TurnQueue
from services.worker.core.turns.turn import Turn, TurnState
from shared.ids import FrontendId
from shared.wire.messages import FinishReason, NextToken

GRAMMAR_FAILED = "grammar_failed"


@dataclass(slots=True)
class Landing:
    """Attributes:
    leaving: turns that are over, each with its reason, and that a step in flight still runs.
    """

    queue: TurnQueue
    history: History
    adapters: Adapters
    planner: Planner
    steps: StepsInFlight
    admission: Admission
    end_token_ids: frozenset[int]
    leaving: dict[Turn, FinishReason] = field(default_factory=dict, init=False)
    _next_tokens: dict[FrontendId, list[NextToken]] = field(
        default_factory=lambda: defaultdict(list), init=False
    )

    def take_next_tokens(self) -> list[EmitTokens]:
        """The tokens of all rows since the last call whose turns have nothing else to say."""
        tokens, self._next_tokens = self._next_tokens, defaultdict(list)
        return [EmitTokens(frontend_id, each) for frontend_id, each in tokens.items()]

    def on_row(
        self, turn: Turn, index: int, end: int, result: StepResult, now_ns: int
    ) -> list[Effect]:
        """What a step gave for a turn, whose rows before this one were good."""
        why_broken = result.broken.get(index) if result.broken else None
        if why_broken is not None or index in result.failed:
            turn.is_void = True
            if index in result.failed:  # noted at once: others may be waiting for the same
                # It is not known whether it was its history, its adapter, or both.
                self.history.residency.put_off(turn.cache.prefix)
                self.adapters.on_failed(turn.adapter)
        else:
            turn.num_computed = min(end, len(turn.tokens))  # one that leaves takes no more tokens
            if self.history.has_news(turn):
                self.steps.retire(self.history.register(turn))
            if result.prompt_logprobs and index in result.prompt_logprobs:
                turn.prompt_logprobs += result.prompt_logprobs[index]
        if why_broken is not None:
            self.history.lose(turn)
        if turn.state is TurnState.LEAVING:
            return []
        if (why_refused := result.refused.get(index)) is not None:
            return [error(turn, GRAMMAR_FAILED, why_refused), *self.end(turn, "error")]
        if why_broken is not None:
            return [error(turn, "poisoned", why_broken), *self.end(turn, "error")]
        sampled = None if turn.is_void else result.sampled[index]
        return [] if sampled is None else self._take_token(turn, sampled, now_ns)

    def settle(self, turn: Turn, now_ns: int) -> list[Effect]:
        """No step in flight has a row of a turn any more: do what waited for that."""
        if (reason := self.leaving.pop(turn, None)) is not None:
            return self._let_go(turn, reason)
        if turn.is_void and turn.state is TurnState.RUNNING:
            turn.is_void = False
            return self.planner.again(turn, now_ns)
        if turn.outgrows_short and turn.state is TurnState.RUNNING:
            return self.planner.outgrow(turn, now_ns)
        return []

    def _take_token(self, turn: Turn, sampled: Sampled, now_ns: int) -> list[Effect]:
        """Append a sampled token, send it, and end the turn if it was the last."""
        token, request = sampled.token, turn.request
        turn.tokens.append(token)
        finish = finish_reason(turn, token, self.end_token_ids)
        is_first = turn.trace.first_token_at_ns is None
        if finish is None and sampled.logprobs is None and not is_first:
            row = (request.turn_id, request.attempt, turn.num_generated - 1, token)
            self._next_tokens[request.frontend_id].append(row)
            return []
        if is_first:
            turn.trace.first_token_at_ns = now_ns
            self.admission.on_first_token(turn, now_ns)
            if not request.num_generated_before:
                self.adapters.on_first_token(turn.adapter, now_ns - request.arrived_at_ns)
        if finish is not None:
            self.admission.targets.on_last_token(turn, now_ns)
        delta = token_delta(turn, sampled, finish, now_ns, is_first=is_first)
        effects: list[Effect] = [Emit(request.frontend_id, delta)]
        if is_first and request.was_lost:
            effects.append(ReportSoon())
        return effects if finish is None else effects + self.end(turn, finish)

    def end(self, turn: Turn, reason: FinishReason) -> list[Effect]:
        """A turn is over: it leaves now, or when the steps in flight that run it have landed. A
        later attempt may take its place meanwhile."""
        del self.queue.turns[turn.request.turn_id]
        turn.state = TurnState.LEAVING
        if not turn.num_flights:
            return self._let_go(turn, reason)
        self.leaving[turn] = reason
        return []

    def _let_go(self, turn: Turn, reason: FinishReason) -> list[Effect]:
        """Its blocks stay as clean copies until their pages are needed, the last one of its session
        with them."""
        effects = self.adapters.drop(turn.adapter)
        self.queue.remove(turn)
        if reason in {"stop", "length"}:
            # The token that it ended with has no KV, or need not have.
            self.history.keep_tail(turn, len(turn.tokens) - 1)
        elif reason == "cancelled" and turn.cache.num_kept > 0:
            self.history.keep_tail(turn, turn.cache.num_kept)
        return [*effects, *self.history.release(turn), ended(turn, reason)]
