"""The batch sampler chooses what the sampler of single rows chooses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from services.worker.core.step import RowSampling
from services.worker.device.grammar import Words, allows
from services.worker.device.sampling.batch_sampler import NO_CARRIED, choose
from services.worker.device.sampling.sampler import sample, uniform, uniforms, without
from shared.wire.messages import SamplingParams

VOCAB = 40
ENDS = frozenset({0, 7})
TOKENS = st.integers(0, VOCAB - 1)

PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.just(9), "seed": st.integers(0, 2**63 - 1)},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.integers(0, VOCAB + 5),
        "top_p": st.sampled_from([0.1, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.7]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 2.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.7]),
        "logit_bias": st.lists(st.tuples(TOKENS, st.sampled_from([-100.0, 3.5])), max_size=3),
        "allowed_token_ids": st.lists(TOKENS, max_size=4),
        "stop_token_ids": st.lists(TOKENS, max_size=2),
        "min_tokens": st.integers(0, 6),
    },
)


@st.composite
def sampled_rows(draw: st.DrawFn) -> RowSampling:
    params: dict[str, Any] = draw(PARAMS)
    generated = draw(st.lists(TOKENS, min_size=1, max_size=8))
    prompt = draw(st.lists(TOKENS, min_size=1, max_size=8))
    return RowSampling(SamplingParams(**params), len(generated), prompt, generated)


def tokens_of(
    logits: torch.Tensor,
    rows: list[RowSampling],
    carried: list[int],
    masks: dict[int, Words],
) -> list[int | None]:
    chosen = choose(logits, rows, torch.tensor(carried, dtype=torch.int32), ENDS, masks)
    pairs = zip(chosen.tokens.tolist(), chosen.largest.isfinite().tolist(), strict=True)
    return [token if is_finite else None for token, is_finite in pairs]


@st.composite
def rows_and_masks(draw: st.DrawFn) -> tuple[list[RowSampling], dict[int, Words]]:
    rows, masks = draw(st.lists(sampled_rows(), min_size=1, max_size=5)), {}
    for index, row in enumerate(rows):
        if not row.params.allowed_token_ids and draw(st.booleans()):
            row.params = replace(row.params, grammar="one")
            allowed = draw(st.sets(TOKENS, min_size=1, max_size=4))
            masks[index] = words_of(allowed)
    return rows, masks


def words_of(allowed: set[int]) -> Words:
    bits = np.zeros(64, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@settings(max_examples=300, deadline=None)
@given(rows_and_masks(), st.integers(0, 1000), st.booleans())
def test_both_choose_the_same(
    asked: tuple[list[RowSampling], dict[int, Words]], seed: int, is_carried: bool
) -> None:
    rows, masks = asked
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn((len(rows), VOCAB), generator=generator)
    expected = [None if each is None else each.token for each in sample(logits, rows, ENDS, masks)]
    told, carried = rows, [NO_CARRIED] * len(rows)
    if is_carried:  # the last token is not told, but carried over on the device
        told = [replace(row, generated=row.generated[:-1]) for row in rows]
        carried = [row.generated[-1] for row in rows]
    before = logits.clone()
    assert tokens_of(logits, told, carried, masks) == expected
    for index, mask in masks.items():
        assert allows(mask, VOCAB)[expected[index]]
    assert torch.equal(logits, before), "the logits are others' as well"


def test_an_end_that_comes_too_early_is_better_than_nothing() -> None:
    for allowed, left in (({3, 7}, {3}), ({7}, {7}), ({39}, {39}), ({0, 7}, {0, 7})):
        mask = words_of(allowed)
        kept = allows(without(mask, {0, 7, 10_000}), VOCAB)
        assert set(np.flatnonzero(kept).tolist()) == left
        assert set(np.flatnonzero(allows(mask, VOCAB)).tolist()) == allowed, "it is another's too"


def test_numbers_to_choose_by_are_told_from_others() -> None:
    logits = torch.randn((3, VOCAB))
    logits[1, 4] = float("nan")
    row = RowSampling(SamplingParams(max_tokens=1, temperature=1.0, seed=1), 0, [1], [])
    tokens = tokens_of(logits, [row] * 3, [NO_CARRIED] * 3, {})
    assert tokens[1] is None and None not in (tokens[0], tokens[2])


class Launches(TorchFunctionMode):
    """What is called of torch, and of how many rows it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [each.shape[0] for each in args if isinstance(each, torch.Tensor) and each.dim()]
        self.rows[func.__name__] = max(shapes, default=0)
        return func(*args, **(kwargs or {}))


PLAIN = {"temperature": 0.0, "min_tokens": 3}  # which it has
DRAWN = {"temperature": 1.0}
CUT = {"temperature": 0.7, "top_p": 0.9}
BIASED = {"temperature": 0.0, "logit_bias": [(3, 1.0)]}
ON_ALL = {"sort", "topk", "cumsum", "softmax", "argmax"}  # tokens of a row


@pytest.mark.parametrize(
    ("wishes", "launched"),
    [
        ([PLAIN] * 4, {}),
        ([DRAWN] * 3, {"softmax": 3, "cumsum": 3}),
        ([DRAWN, PLAIN, DRAWN], {"softmax": 2, "cumsum": 2}),
        ([CUT] * 3, {"softmax": 3, "sort": 3, "cumsum": 3}),
        ([CUT, DRAWN, PLAIN, DRAWN], {"softmax": 3, "sort": 1, "cumsum": 2}),
        ([{"top_k": 5}, PLAIN], {"softmax": 1, "topk": 1, "cumsum": 1}),
        ([BIASED, PLAIN], {"argmax": 1}),
    ],
)
def test_nothing_is_launched_that_no_row_asks_for(
    wishes: list[dict[str, Any]], launched: dict[str, int]
) -> None:
    rows = [RowSampling(SamplingParams(max_tokens=9, seed=1, **wish), 3) for wish in wishes]
    logits = torch.randn((len(rows), VOCAB))
    carried = torch.full((len(rows),), NO_CARRIED, dtype=torch.int32)
    with torch.inference_mode(), Launches() as seen:
        choose(logits, rows, carried, ENDS, {})
    assert {name: num for name, num in seen.rows.items() if name in ON_ALL} == launched
    if BIASED not in wishes:  # a number made into a tensor is copied to a device, waiting for it
        assert not {"tensor", "as_tensor"} & seen.rows.keys()


@given(st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 2**40)), max_size=9))
def test_numbers_drawn_together_are_those_drawn_alone(asked: list[tuple[int, int]]) -> None:
    together = uniforms([seed for seed, _ in asked], [position for _, position in asked])
    assert together.tolist() == [uniform(*each) for each in asked]
