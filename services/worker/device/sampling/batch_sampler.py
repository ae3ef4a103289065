"""From logits to tokens for a whole batch, on the device and without waiting for it.

Chooses what `sampler` chooses: the same adjustments in the same order, and the same number decides
the draw. What differs is where it happens: all rows at once, and nothing is read back before the
step is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.worker.core.step import RowSampling
from services.worker.device.base.upload import upload
from services.worker.device.grammar import Words
from services.worker.device.sampling.sampler import is_plain_greedy, uniform, without
from shared.wire.sampling import REPETITION_PENALTY_MIN, TEMPERATURE_MIN, has_penalties

NO_CARRIED = -1


@dataclass(frozen=True, slots=True)
class Chosen:
    """Attributes:
    tokens: int32 ``[num_rows]``, whatever they are worth.
    is_finite: bool ``[num_rows]``: whether the model's numbers are some to choose by.
    """

    tokens: torch.Tensor
    is_finite: torch.Tensor


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
    others = [index for index, row in enumerate(rows) if not is_plain_greedy(row.params)]
    if others:
        (at,) = upload([np.array(others, np.int32)], logits.device)
        asked = [rows[index] for index in others]
        own = {number: masks[at] for number, at in enumerate(others) if at in masks}
        tokens[at] = _choose(logits[at].float(), asked, carried[at], end_token_ids, own)
    return Chosen(tokens, largest.float().isfinite())


def _choose(
    logits: torch.Tensor,
    rows: list[RowSampling],
    carried: torch.Tensor,
    end_token_ids: frozenset[int],
    masks: Mapping[int, Words],
) -> torch.Tensor:
    if any(has_penalties(row.params) for row in rows):
        logits = _penalized(logits, rows, carried)
    _bias_and_mask(logits, rows, end_token_ids, masks)
    likeliest = logits.argmax(-1).int()
    draws = [uniform(row.params.seed or 0, row.num_generated) for row in rows]
    temperatures = [max(row.params.temperature, TEMPERATURE_MIN) for row in rows]
    draw, temperature = upload([np.array(draws), np.array(temperatures, np.float32)], logits.device)
    probabilities = (logits / temperature[:, None]).softmax(-1)
    drawn = _drawn(probabilities.double().cumsum(-1), draw, probabilities.shape[-1])
    truncated = [row.params.top_k or row.params.top_p < 1.0 or row.params.min_p for row in rows]
    if any(truncated):
        drawn = torch.where(
            _flags(truncated, logits), _draw_truncated(probabilities, rows, draw), drawn
        )
    is_greedy = _flags([row.params.temperature == 0.0 for row in rows], logits)
    return torch.where(is_greedy, likeliest, drawn)


def _penalized(
    logits: torch.Tensor, rows: list[RowSampling], carried: torch.Tensor
) -> torch.Tensor:
    """Repetition, frequency and presence penalties, of the known tokens and of the carried ones."""
    num_rows, vocab = logits.shape
    params = [row.params for row in rows]
    factors = [max(each.repetition_penalty, REPETITION_PENALTY_MIN) for each in params]
    arrays = [
        np.array([vocab * n + t for n, row in enumerate(rows) for t in row.prompt], np.int32),
        np.array([vocab * n + t for n, row in enumerate(rows) for t in row.generated], np.int32),
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


def _bias_and_mask(
    logits: torch.Tensor,
    rows: list[RowSampling],
    end_token_ids: frozenset[int],
    masks: Mapping[int, Words],
) -> None:
    """Biases, tokens that are not allowed, and ends that would come too early; in place."""
    vocab = logits.shape[1]
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
    if grammatical:
        _hold_to(logits, grammatical)
    if not (places or masked or restricted):
        return
    ints = [np.array(each, np.int32) for each in (places, masked, restricted, kept)]
    at, mask_at, rows_at, kept_at, bias = upload(
        [*ints, np.array(biases, np.float32)], logits.device
    )
    flat = logits.view(-1)
    flat.index_add_(0, at, bias)
    flat[mask_at] = float("-inf")
    if restricted:
        is_kept = torch.ones_like(logits, dtype=torch.bool)
        is_kept[rows_at] = False
        is_kept.view(-1)[kept_at] = True
        logits.masked_fill_(~is_kept, float("-inf"))


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


def _draw_truncated(
    probabilities: torch.Tensor, rows: list[RowSampling], draw: torch.Tensor
) -> torch.Tensor:
    """Draw among the likeliest tokens that top-k, top-p and min-p leave."""
    vocab = probabilities.shape[1]
    top_k = [min(row.params.top_k or vocab, vocab) for row in rows]
    top, top_p, min_p = upload(
        [
            np.array(top_k, np.int32),
            np.array([row.params.top_p for row in rows]),
            np.array([row.params.min_p for row in rows], np.float32),
        ],
        probabilities.device,
    )
    count = max(top_k)
    if count < vocab:
        values, tokens = probabilities.topk(count)
    else:
        values, tokens = probabilities.sort(-1, descending=True)
    before = values.double().cumsum(-1) - values
    is_kept = torch.arange(count, device=values.device) < top[:, None]
    is_kept &= before < top_p[:, None]  # the token that crosses the threshold stays
    is_kept &= values >= min_p[:, None] * values[:, :1]
    kept = torch.where(is_kept, values, 0.0).double().cumsum(-1)
    places = _drawn(kept, draw, is_kept.sum(-1))
    return tokens.gather(1, places[:, None].long())[:, 0].int()


def _drawn(
    cumulative: torch.Tensor, draw: torch.Tensor, num_kept: torch.Tensor | int
) -> torch.Tensor:
    """Where each row's draw falls: int32 ``[num_rows]``."""
    target = (draw * cumulative[:, -1])[:, None]
    places = torch.searchsorted(cumulative, target, right=True)[:, 0]
    last = num_kept - 1
    return torch.minimum(places, torch.as_tensor(last, device=places.device)).int()


def _flags(values: Sequence[object], like: torch.Tensor) -> torch.Tensor:
    (flags,) = upload([np.array([bool(value) for value in values], np.int32)], like.device)
    return flags.bool()
