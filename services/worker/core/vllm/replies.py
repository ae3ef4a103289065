"""From vLLM's outputs to what is sent of a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from services.worker.core.effects import Effect, Emit, EmitTokens
from services.worker.core.step import Sampled
from services.worker.core.turns.outcome import ended, token_delta
from services.worker.core.turns.turn import Turn
from shared.wire.messages import FinishReason, KvPlace, TokenLogprobs

# vLLM's positions: the log-probability and the rank of each named token.
Position = Mapping[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One step's output of a request.

    Attributes:
        tokens: new ones.
        logprobs: of each, where asked for.
        finish: why it is over, as vLLM says it; empty: it goes on.
        num_cached: prompt tokens that were not computed; None: not known yet.
        began_at_ns: its first step, monotonic; 0: not known.
        prompt_logprobs: with the first output that has some.
        num_prompt: prompt tokens, those of images among them.
    """

    tokens: Sequence[int]
    logprobs: Sequence[Position] | None = None
    finish: Literal["", "stop", "length", "abort", "error", "repetition"] = ""
    num_cached: int | None = None
    began_at_ns: int = 0
    prompt_logprobs: Sequence[Position | None] | None = field(default=None)
    num_prompt: int = 0


def on_output(turn: Turn, output: Output, now_ns: int) -> tuple[bool, list[Effect]]:
    """Add a step's tokens to the turn; whether that was its end, and what is to be sent."""
    finish = finish_reason(output)
    effects: list[Effect] = []
    num_top = turn.request.sampling.logprobs or 0
    num_tokens = len(output.tokens)
    for at, token in enumerate(output.tokens):
        is_first = len(turn.tokens) == turn.num_known
        if is_first:
            _on_first(turn, output, now_ns)
        turn.tokens.append(token)
        logprobs = None if output.logprobs is None else scored(token, output.logprobs[at], num_top)
        last = finish if at == num_tokens - 1 else None
        if is_first or last or logprobs is not None:
            sampled = Sampled(token, logprobs)
            delta = token_delta(turn, sampled, last, now_ns, is_first=is_first)
            if is_first and output.num_prompt > turn.num_known:
                num_images = output.num_prompt - turn.num_known
                delta = replace(delta, prompt_tokens=turn.num_prompt + num_images)
            effects.append(Emit(turn.request.frontend_id, delta))
        else:
            next_token = (turn.request.turn_id, turn.request.attempt, turn.num_generated - 1, token)
            effects.append(EmitTokens(turn.request.frontend_id, [next_token]))
    if finish:
        effects.append(ended(turn, finish))
    return finish is not None, effects


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Of a prompt: so many tokens came from vLLM's cache, and so many behind them from below."""

    num_local: int
    num_loaded: int


def with_cached(turn: Turn, output: Output, cached: CachedTokens | None) -> Output:
    """A turn's first output, with what is known of where its cached tokens were: vLLM counts what
    could not be loaded among them.
    """
    if cached is None:
        return output
    num_seen = num_local = cached.num_local // turn.cache.block_tokens
    found: dict[KvPlace, int] = {"pool": num_local}
    num_before = 0
    for place, num_blocks in turn.cache.found.items():
        num_before += num_blocks
        found[place] = max(num_before - num_seen, 0)
        num_seen = max(num_before, num_seen)
    turn.cache.found = found
    return replace(output, num_cached=cached.num_local + cached.num_loaded)


def finish_reason(output: Output) -> FinishReason | None:
    """Why a turn is over; None: it goes on."""
    match output.finish:
        case "":
            return None
        case "stop" | "repetition":
            return "stop"
        case "length":
            return "length"
        case "abort":
            return "cancelled"
        case _:
            return "error"


def scored(token: int, position: Position, num_top: int) -> TokenLogprobs:
    """Log-probabilities at one position: the token's own, and so many of the likeliest. vLLM gives
    the token's own among them, in any order.
    """
    ranked = sorted(position.items(), key=lambda each: each[1].rank)
    top = [(other, float(found.logprob)) for other, found in ranked[:num_top]]
    return TokenLogprobs(token=token, logprob=float(position[token].logprob), top=top)


def _on_first(turn: Turn, output: Output, now_ns: int) -> None:
    """Note what its first delta says."""
    turn.trace.first_token_at_ns = now_ns
    began_ns = output.began_at_ns or now_ns
    turn.trace.first_step_at_ns = min(max(began_ns, turn.request.arrived_at_ns), now_ns)
    turn.cache.num_cached = output.num_cached or 0
    num_top = turn.request.sampling.prompt_logprobs
    if output.prompt_logprobs and num_top is not None:
        prompt = turn.tokens[: turn.num_prompt]
        turn.prompt_logprobs = [
            TokenLogprobs(token=token, logprob=None)
            if position is None
            else scored(token, position, num_top)
            for token, position in zip(prompt, output.prompt_logprobs, strict=False)
        ]
