"""From logits to tokens, reproducibly.

The random number behind a choice is a function of the turn's seed and the position alone, so a turn
that is preempted, or goes on after its worker died, draws the same tokens in any batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from services.worker.core.step import RowSampling, Sampled, StepPlan, StepResult
from services.worker.device.base.upload import ReadBack
from services.worker.device.grammar import Words, allows
from shared.wire.messages import SamplingParams, TokenLogprobs
from shared.wire.sampling import REPETITION_PENALTY_MIN, TEMPERATURE_MIN, has_penalties

_MASK = (1 << 64) - 1
FIRST_CANDIDATES = 1024
LOGPROB_MIN = -9999.0


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Log-probabilities of some tokens and of the likeliest beside each."""

    back: ReadBack

    def listed(self) -> list[TokenLogprobs]:
        """What they are, once they are here."""
        return [
            TokenLogprobs(token=token, logprob=logprob, top=list(zip(top, at, strict=True)))
            for token, logprob, top, at in zip(
                *(each.tolist() for each in self.back.wait()), strict=True
            )
        ]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a seed and a position (splitmix64).

    >>> uniform(1, 2) == uniform(1, 2) != uniform(1, 3)
    True
    """
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """`uniform` of each seed and its position.

    >>> uniforms([1, 7], [2, 0]).tolist() == [uniform(1, 2), uniform(7, 0)]
    True
    """
    state = np.array([seed & _MASK for seed in seeds], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += (np.array(positions, np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = (state ^ (state >> np.uint64(31))) >> np.uint64(11)
    return state.astype(np.float64) / (1 << 53)


def sample(
    logits: torch.Tensor,
    rows: list[RowSampling],
    end_token_ids: frozenset[int],
    masks: Mapping[int, Words],
) -> list[Sampled | None]:
    """One token for each row; None where the model's numbers are none to choose by.

    Args:
        logits: ``[num_rows, vocab]``, any float dtype; not changed.
        end_token_ids: masked while a turn has fewer than its ``min_tokens``.
        masks: by index in `rows`, of those that are held to a grammar.
    """
    largest, greedy = logits.max(-1)  # of a row with a NaN that is the largest
    chosen: list[Sampled | None] = []
    tops, likeliest = largest.float().tolist(), greedy.tolist()
    held = {at: mask for at, mask in masks.items() if is_greedy(rows[at].params)}
    for index, token in zip(held, _likeliest_within(logits, held), strict=True):
        likeliest[index] = token
    for index, row in enumerate(rows):
        params = row.params
        if not math.isfinite(tops[index]):
            chosen.append(None)
            continue
        token = likeliest[index]
        if not is_greedy(params):
            token = _choose(logits[index].float(), row, end_token_ids, masks.get(index))
        logprobs = None
        if params.logprobs is not None:
            logprobs = token_logprobs(logits[index : index + 1], [token], params.logprobs)[0]
        chosen.append(Sampled(token, logprobs))
    return chosen


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest of the tokens that a grammar allows is."""
    return (
        params.temperature == 0.0
        and not has_penalties(params)
        and not params.logit_bias
        and not params.allowed_token_ids
        and params.min_tokens == 0
    )


def _likeliest_within(logits: torch.Tensor, masks: Mapping[int, Words]) -> list[int]:
    """Of these rows, all at once."""
    if not masks:
        return []
    allowed = np.stack([allows(mask, logits.shape[1]) for mask in masks.values()])
    own = logits[list(masks)].masked_fill_(torch.from_numpy(~allowed), float("-inf"))
    tokens: list[int] = own.argmax(-1).tolist()
    return tokens


def token_logprobs(logits: torch.Tensor, tokens: list[int], num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities, under the model itself, of `tokens` and of the `num_top` likeliest.

    Args:
        logits: ``[len(tokens), vocab]``.
    """
    return top_logprobs(logits, torch.tensor(tokens, device=logits.device), num_top).listed()


def top_logprobs(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> TopLogprobs:
    """The same, being copied from the device; `tokens` ``[num_rows]`` is there."""
    # What cannot be is very unlikely: JSON has no word for minus infinity.
    logprobs = logits.float().log_softmax(-1).clamp_(min=LOGPROB_MIN)
    own = logprobs.gather(1, tokens.long()[:, None])[:, 0]
    values, indices = logprobs.topk(min(num_top, logits.shape[-1]), dim=-1)
    return TopLogprobs(ReadBack([tokens, own, indices, values]))


def _choose(
    logits: torch.Tensor, row: RowSampling, end_token_ids: frozenset[int], mask: Words | None
) -> int:
    params = row.params
    logits = _penalized(logits, row)
    if params.logit_bias:
        tokens, biases = zip(*params.logit_bias, strict=True)
        at = torch.tensor(tokens, device=logits.device)
        logits.index_add_(0, at, torch.tensor(biases, device=logits.device, dtype=logits.dtype))
    too_early: set[int] = set()
    if row.num_generated < params.min_tokens:
        too_early = {*end_token_ids, *params.stop_token_ids}
    if params.allowed_token_ids:
        logits = _only(logits, params.allowed_token_ids, too_early)
    elif mask is not None:
        logits = _within(logits, mask, too_early)
    elif too_early:
        logits[[*too_early]] = float("-inf")
    if params.temperature == 0.0:
        return int(logits.argmax())
    probabilities = (logits / max(params.temperature, TEMPERATURE_MIN)).softmax(-1)
    draw = uniform(params.seed or 0, row.num_generated)
    if params.top_k or params.top_p < 1.0 or params.min_p:
        return _draw_truncated(probabilities, params, draw)
    # Float64: a float32 running sum over a large vocabulary may end visibly below one.
    cumulative = probabilities.double().cumsum(-1)
    return _draw(cumulative, draw)


def _penalized(logits: torch.Tensor, row: RowSampling) -> torch.Tensor:
    params = row.params
    logits = logits.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(np.union1d(row.prompt, row.generated), device=logits.device).long()
        scores = logits[seen]
        factor = max(params.repetition_penalty, REPETITION_PENALTY_MIN)
        logits[seen] = torch.where(scores > 0, scores / factor, scores * factor)
    if params.presence_penalty or params.frequency_penalty:
        generated = torch.tensor(row.generated, device=logits.device)
        counts = generated.long().bincount(minlength=logits.shape[0]).float()
        logits -= params.frequency_penalty * counts
        logits -= params.presence_penalty * (counts > 0)
    return logits


def _only(logits: torch.Tensor, allowed: list[int], too_early: set[int]) -> torch.Tensor:
    """All others masked. If nothing but ends is allowed, an early one is better than none."""
    kept = [token for token in allowed if token not in too_early] or allowed
    masked = torch.full_like(logits, float("-inf"))
    masked[kept] = logits[kept]
    return masked


def _within(logits: torch.Tensor, mask: Words, too_early: set[int]) -> torch.Tensor:
    """The same for a grammar's mask."""
    allowed = torch.from_numpy(allows(without(mask, too_early), logits.shape[0]))
    return logits.masked_fill_(~allowed.to(logits.device), float("-inf"))


def without(mask: Words, tokens: set[int]) -> Words:
    """A mask that allows none of these tokens; if nothing would be left, the same."""
    if not tokens:
        return mask
    left = mask.copy()
    for token in tokens:
        if token // 32 < len(left):
            left[token // 32] &= ~np.left_shift(np.int32(1), token % 32)
    return left if left.any() else mask


def _draw_truncated(probabilities: torch.Tensor, params: SamplingParams, draw: float) -> int:
    """Draw among the likeliest tokens that top-k, top-p and min-p leave."""
    vocab = probabilities.shape[0]
    count = min(params.top_k or FIRST_CANDIDATES, vocab)
    while True:
        values, tokens = probabilities.topk(count)
        before = values.double().cumsum(0) - values
        is_kept = before < params.top_p  # the token that crosses the threshold stays
        is_kept &= values >= params.min_p * values[0]
        # Candidates are sorted: if the last one is out, all further ones are out too.
        if params.top_k or count == vocab or not is_kept[-1]:
            break
        count = min(count * 8, vocab)
    kept = values[is_kept].double().cumsum(0)
    return int(tokens[_draw(kept, draw)])


def _draw(cumulative: torch.Tensor, draw: float) -> int:
    target = torch.tensor(draw, dtype=cumulative.dtype, device=cumulative.device) * cumulative[-1]
    index = int(torch.searchsorted(cumulative, target, right=True))
    return min(index, cumulative.shape[0] - 1)


NOT_FINITE = "the model's numbers for this turn are not finite"


def wanted_logits(plan: StepPlan) -> list[int]:
    """Packed positions whose logits are needed; never empty."""
    starts: list[int] = plan.query_starts.tolist()
    wanted: list[int] = []
    for index, sampling in enumerate(plan.sampling):
        if index in plan.scoring:
            wanted += range(starts[index], starts[index + 1])
        elif sampling is not None:
            wanted.append(starts[index + 1] - 1)
    return wanted or [starts[-1] - 1]


def enter_scores(result: StepResult, plan: StepPlan, row: int, scores: list[TokenLogprobs]) -> None:
    """Put into a step's result what the logits of a row's chunk say of the prompt's tokens.

    Args:
        scores: of the row's `RowScoring.targets`; position p predicts token p + 1.
    """
    if plan.scoring[row].is_first:
        token = int(plan.tokens[plan.query_starts[row]])
        scores = [TokenLogprobs(token=token, logprob=None), *scores]
    result.prompt_logprobs[row] = scores
    if any(not math.isfinite(each.logprob or 0.0) for each in scores):
        result.broken[row] = NOT_FINITE
