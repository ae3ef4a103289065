"""From logits to tokens for a whole batch, on the device and without waiting for it.

Chooses what `sampler` chooses: the same adjustments in the same order, and the same number decides
the draw. What differs is where it happens: all rows at once, and nothing is read back before the
step is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.worker.core.step import Ints, RowSampling
from services.worker.device.base.upload import upload
from services.worker.device.grammar import Words
from services.worker.device.sampling.sampler import uniforms, without
from shared.wire.sampling import REPETITION_PENALTY_MIN, TEMPERATURE_MIN, has_penalties

NO_CARRIED = -1


@dataclass(frozen=True, slots=True)
class Chosen:
    """Attributes:
    tokens: int32 ``[num_rows]``, whatever they are worth.
    largest: ``[num_rows]``, of each row's logits: finite where there is something to choose by.
    """

    tokens: torch.Tensor
    largest: torch.Tensor


def choose(
    logits: torch.Tensor,
    rows: list[RowSampling],
    carried: torch.Tensor,
    end_token_ids: frozenset[int],
    masks: Mapping[int, Words],
) -> Chosen:
    """One token for each row.

    Args:
        logits: ``[num_rows, vocab]``, any float dtype; not changed.
        carried: int32 ``[num_rows]``: the token that each row's penalties do not know of yet, or
            `NO_CARRIED`.
        end_token_ids: masked while a turn has fewer than its ``min_tokens``.
        masks: by index in `rows`, of those that are held to a grammar.
    """
    largest, likeliest = logits.max(-1)  # of a row with a NaN that is the largest
    tokens = likeliest.int()
    others = [index for index, row in enumerate(rows) if not _is_likeliest(row)]
    if not others:
        return Chosen(tokens, largest)
    if len(others) == len(rows):
        return Chosen(_choose(logits, rows, carried, end_token_ids, masks), largest)
    (at,) = upload([np.array(others, np.int32)], logits.device)
    asked = [rows[index] for index in others]
    own = {number: masks[index] for number, index in enumerate(others) if index in masks}
    tokens[at] = _choose(logits[at], asked, carried[at], end_token_ids, own)
    return Chosen(tokens, largest)


def _is_likeliest(row: RowSampling) -> bool:
    """Whether the likeliest token is the answer, as it stands."""
    params = row.params
    return (
        params.temperature == 0.0
        and row.num_generated >= params.min_tokens
        and not (params.grammar or params.logit_bias or params.allowed_token_ids)
        and not has_penalties(params)
    )


def _choose(
    logits: torch.Tensor,
    rows: list[RowSampling],
    carried: torch.Tensor,
    end_token_ids: frozenset[int],
    masks: Mapping[int, Words],
) -> torch.Tensor:
    scores = logits.float()
    if any(has_penalties(row.params) for row in rows):
        scores = _penalized(scores, rows, carried)
    scores = _biased_and_masked(scores, logits, rows, end_token_ids, masks)
    are_greedy = [row.params.temperature == 0.0 for row in rows]
    if all(are_greedy):
        return scores.argmax(-1).int()
    drawn = _draw(scores, rows)
    if not any(are_greedy):
        return drawn
    (is_greedy,) = upload([np.array(are_greedy, np.int32)], logits.device)
    return torch.where(is_greedy.bool(), scores.argmax(-1).int(), drawn)


def _draw(scores: torch.Tensor, rows: list[RowSampling]) -> torch.Tensor:
    """A token for each row, by its number: int32 ``[num_rows]``. Nothing that no row asks for is
    launched."""
    params = [row.params for row in rows]
    temperatures = [max(each.temperature, TEMPERATURE_MIN) for each in params]
    are_cut = [each.top_p < 1.0 or each.top_k > 0 or each.min_p > 0.0 for each in params]
    cut = [number for number, is_cut in enumerate(are_cut) if is_cut]
    whole = [number for number, is_cut in enumerate(are_cut) if not is_cut]
    vocab = scores.shape[1]
    top_k = [min(params[number].top_k or vocab, vocab) for number in cut]
    draw, temperature, cut_at, whole_at, most, top_p, min_p = upload(
        [
            uniforms([each.seed or 0 for each in params], [row.num_generated for row in rows]),
            np.array(temperatures, np.float32),
            np.array(cut, np.int32),
            np.array(whole, np.int32),
            np.array(top_k, np.int32),
            np.array([params[number].top_p for number in cut]),
            np.array([params[number].min_p for number in cut], np.float32),
        ],
        scores.device,
    )
    if any(each != 1.0 for each in temperatures):
        scores = scores / temperature[:, None]
    probabilities = scores.softmax(-1)
    if not cut:
        return _drawn(probabilities.cumsum(-1, dtype=torch.float64), draw)
    limits = _Cut(max(top_k), most, top_p, min_p)
    if not whole:
        return limits.draw(probabilities, draw)
    tokens = torch.empty(len(rows), dtype=torch.int32, device=scores.device)
    tokens[cut_at] = limits.draw(probabilities[cut_at], draw[cut_at])
    running = probabilities[whole_at].cumsum(-1, dtype=torch.float64)
    tokens[whole_at] = _drawn(running, draw[whole_at])
    return tokens


def _penalized(
    logits: torch.Tensor, rows: list[RowSampling], carried: torch.Tensor
) -> torch.Tensor:
    """Repetition, frequency and presence penalties, of the known tokens and of the carried ones."""
    num_rows, vocab = logits.shape
    params = [row.params for row in rows]
    factors = [max(each.repetition_penalty, REPETITION_PENALTY_MIN) for each in params]
    repeated = [row.prompt if row.params.repetition_penalty != 1.0 else [] for row in rows]
    arrays = [
        _places(repeated, vocab),
        _places([row.generated for row in rows], vocab),
        np.array(factors, np.float32),
        np.array([each.frequency_penalty for each in params], np.float32),
        np.array([each.presence_penalty for each in params], np.float32),
        np.arange(num_rows, dtype=np.int32) * vocab,
    ]
    prompt, generated, factor, frequency, presence, first = upload(arrays, logits.device)
    counts = torch.zeros(num_rows * vocab, device=logits.device)
    counts.index_add_(0, generated, torch.ones_like(generated, dtype=torch.float32))
    is_carried = carried != NO_CARRIED
    counts.index_add_(0, first + carried.clamp(min=0), is_carried.float())
    counts = counts.view(num_rows, vocab)
    is_seen = counts > 0
    is_seen.view(-1)[prompt] = True
    factor = factor[:, None]
    scaled = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(is_seen & (factor != 1.0), scaled, logits)
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def _places(tokens: Sequence[Sequence[int] | Ints], vocab: int) -> Ints:
    """Of each row's tokens in the logits of all rows, one behind the other."""
    lengths = [len(each) for each in tokens]
    flat = np.concatenate([np.asarray(each, np.int32) for each in tokens])
    return flat + np.repeat(np.arange(len(tokens), dtype=np.int32) * np.int32(vocab), lengths)


def _biased_and_masked(
    scores: torch.Tensor,
    logits: torch.Tensor,
    rows: list[RowSampling],
    end_token_ids: frozenset[int],
    masks: Mapping[int, Words],
) -> torch.Tensor:
    """Biases, tokens that are not allowed, and ends that would come too early.

    Args:
        scores: changed, unless they are the logits.
    """
    vocab = scores.shape[1]
    places: list[int] = []
    biases: list[float] = []
    masked: list[int] = []
    restricted: list[int] = []
    kept: list[int] = []
    grammatical: dict[int, Words] = {}
    for number, row in enumerate(rows):
        params = row.params
        for token, value in params.logit_bias or ():
            places.append(vocab * number + token)
            biases.append(value)
        too_early: set[int] = set()
        if row.num_generated < params.min_tokens:
            too_early = {*end_token_ids, *params.stop_token_ids}
        if params.allowed_token_ids:
            allowed = [token for token in params.allowed_token_ids if token not in too_early]
            restricted.append(number)
            kept += [vocab * number + token for token in allowed or params.allowed_token_ids]
        elif number in masks:
            grammatical[number] = without(masks[number], too_early)
        else:
            masked += [vocab * number + token for token in too_early]
    if not (places or masked or restricted or grammatical):
        return scores
    if scores is logits:
        scores = scores.clone()
    if grammatical:
        _hold_to(scores, grammatical)
    if not (places or masked or restricted):
        return scores
    ints = [np.array(each, np.int32) for each in (places, masked, restricted, kept)]
    at, mask_at, rows_at, kept_at, bias = upload(
        [*ints, np.array(biases, np.float32)], scores.device
    )
    flat = scores.view(-1)
    flat.index_add_(0, at, bias)
    flat[mask_at] = float("-inf")
    if restricted:
        is_kept = torch.ones_like(scores, dtype=torch.bool)
        is_kept[rows_at] = False
        is_kept.view(-1)[kept_at] = True
        scores.masked_fill_(~is_kept, float("-inf"))
    return scores


def _hold_to(logits: torch.Tensor, masks: Mapping[int, Words]) -> None:
    """Only what grammars allow; in place. Bits are unpacked on the device: a mask is an eighth of
    a byte a token on its way there."""
    vocab, device = logits.shape[1], logits.device
    at, words = upload([np.array(list(masks), np.int32), np.stack(list(masks.values()))], device)
    bits = (words[:, :, None] >> torch.arange(32, device=device, dtype=torch.int32)) & 1
    allowed = torch.zeros((len(masks), vocab), dtype=torch.bool, device=device)
    num_known = min(bits.shape[1] * 32, vocab)
    allowed[:, :num_known] = bits.flatten(1)[:, :num_known].bool()
    logits[at] = logits[at].masked_fill(~allowed, float("-inf"))


@dataclass(frozen=True, slots=True)
class _Cut:
    """The likeliest tokens of each row that top-k, top-p and min-p leave.

    Attributes:
        count: the most that one of them leaves.
        top_k: int32 ``[num_rows]``; the vocabulary's size: it leaves all.
        top_p: float64; min_p: float32.
    """

    count: int
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def draw(self, probabilities: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
        """Draw among them: int32 ``[num_rows]``."""
        if self.count < probabilities.shape[1]:
            values, tokens = probabilities.topk(self.count)
        else:
            values, tokens = probabilities.sort(-1, descending=True)
        before = values.cumsum(-1, dtype=torch.float64) - values
        is_kept = torch.arange(self.count, device=values.device) < self.top_k[:, None]
        is_kept &= before < self.top_p[:, None]  # the token that crosses the threshold stays
        is_kept &= values >= self.min_p[:, None] * values[:, :1]
        kept = torch.where(is_kept, values, 0.0).cumsum(-1, dtype=torch.float64)
        places = torch.minimum(_drawn(kept, draw), is_kept.sum(-1) - 1)
        return tokens.gather(1, places[:, None])[:, 0].int()


def _drawn(cumulative: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """Where each row's draw falls: int32 ``[num_rows]``."""
    target = (draw * cumulative[:, -1])[:, None]
    places = torch.searchsorted(cumulative, target, right=True, out_int32=True)[:, 0]
    return places.clamp(max=cumulative.shape[1] - 1)  # a number, which is not copied to a device
