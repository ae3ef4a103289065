"""Choosing tokens: each parameter by what it must do to the distribution."""

from collections import Counter
from typing import Any

import pytest
import torch

from services.worker.core.step import RowSampling, Sampled
from services.worker.device.sampling.sampler import sample, token_logprobs, uniform
from shared.wire.messages import SamplingParams

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])
NO_END: frozenset[int] = frozenset()


def row(
    prompt: list[int] | None = None, generated: list[int] | None = None, **sampling: Any
) -> RowSampling:
    params = SamplingParams(**{"max_tokens": 9, "temperature": 1.0, "seed": 0, **sampling})
    generated = generated or []
    return RowSampling(params, len(generated), prompt or [0], generated)


def choose(
    logits: torch.Tensor, rows: list[RowSampling], ends: frozenset[int] = NO_END
) -> list[Sampled]:
    """`sample`, of numbers that can be chosen by."""
    chosen = [each for each in sample(logits, rows, ends, {}) if each is not None]
    assert len(chosen) == len(rows)
    return chosen


def drawn(count: int = 600, **sampling: Any) -> Counter[int]:
    """Tokens drawn with `count` seeds."""
    rows = [row(**{"seed": seed, **sampling}) for seed in range(count)]
    return Counter(s.token for s in choose(LOGITS.expand(count, -1), rows, NO_END))


def test_zero_temperature_takes_the_likeliest() -> None:
    assert choose(LOGITS[None], [row(temperature=0.0)], NO_END)[0].token == 0


def test_zero_temperature_takes_the_likeliest_of_the_allowed() -> None:
    params: dict[str, Any] = {"temperature": 0.0, "allowed_token_ids": [4, 2]}
    assert choose(LOGITS[None], [row(**params)], NO_END)[0].token == 2


def test_frequencies_follow_the_softmax() -> None:
    counts = drawn(4000)
    for token, probability in enumerate(LOGITS.softmax(0).tolist()):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


def test_temperature_sharpens() -> None:
    assert drawn(temperature=0.2)[0] > drawn(temperature=1.0)[0] > drawn(temperature=5.0)[0]


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_p": 0.5}, {0}),  # the likeliest has 0.64 alone
        ({"top_p": 0.7}, {0, 1}),  # the token that crosses the threshold stays
        ({"min_p": 0.3}, {0, 1}),
        ({"top_k": 4, "top_p": 0.9}, {0, 1, 2}),
        ({"logit_bias": [(0, -100.0), (1, -100.0)]}, {2, 3, 4}),
        ({"stop_token_ids": [0], "min_tokens": 3}, {1, 2, 3, 4}),
        ({"allowed_token_ids": [1, 3]}, {1, 3}),
        ({"allowed_token_ids": [1, 3], "top_k": 1}, {1}),
        ({"allowed_token_ids": [0, 2], "stop_token_ids": [0], "min_tokens": 3}, {2}),
        ({"allowed_token_ids": [0], "stop_token_ids": [0], "min_tokens": 3}, {0}),
        ({"allowed_token_ids": [4], "logit_bias": [(4, -100.0)]}, {4}),
    ],
)
def test_truncation_leaves_exactly_these(sampling: dict[str, Any], allowed: set[int]) -> None:
    assert set(drawn(2000, **sampling)) == allowed


def test_top_p_of_a_flat_distribution_reaches_beyond_the_first_candidates() -> None:
    logits = torch.zeros(5000)
    rows = [row(seed=seed, top_p=0.99) for seed in range(300)]
    tokens = {s.token for s in choose(logits.expand(300, -1), rows, NO_END)}
    assert max(tokens) > 4000


def test_end_tokens_are_masked_until_min_tokens() -> None:
    ends = frozenset([0])
    early = row(temperature=0.0, min_tokens=2)
    late = row(prompt=[5], generated=[1, 1], temperature=0.0, min_tokens=2)
    assert [s.token for s in choose(LOGITS.expand(2, -1), [early, late], ends)] == [1, 0]


def test_penalties_count_what_they_should() -> None:
    # Token 0 stands in the prompt only, token 1 was generated twice.
    seen: dict[str, Any] = {"prompt": [0], "generated": [1, 1], "temperature": 0.0}
    logits = torch.tensor([[2.0, 2.1, 1.9, 0.0, 0.0]])
    assert choose(logits, [row(**seen)], NO_END)[0].token == 1
    assert choose(logits, [row(**seen, presence_penalty=0.15)], NO_END)[0].token == 0
    assert choose(logits, [row(**seen, frequency_penalty=0.06)], NO_END)[0].token == 0
    assert choose(logits, [row(**seen, repetition_penalty=1.2)], NO_END)[0].token == 2


def test_the_draw_depends_on_seed_and_position_alone() -> None:
    draws = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(draws)) == len(draws)
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.03)
    assert all(0.0 <= draw < 1.0 for draw in draws)


def test_logprobs_are_of_the_model_not_of_the_sampling() -> None:
    params: dict[str, Any] = {"temperature": 0.0, "logprobs": 2, "logit_bias": [(4, 100.0)]}
    chosen = choose(LOGITS[None], [row(**params)], NO_END)[0]
    want = LOGITS.log_softmax(0).tolist()
    assert chosen.token == 4
    assert chosen.logprobs is not None
    assert chosen.logprobs.logprob == pytest.approx(want[4])
    assert [token for token, _ in chosen.logprobs.top] == [0, 1]


def test_more_logprobs_than_tokens_are_cut() -> None:
    assert len(token_logprobs(LOGITS[None], [2], 99)[0].top) == 5


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 2}])
def test_numbers_that_are_not_finite_end_their_own_row_only(
    poison: float, sampling: dict[str, Any]
) -> None:
    logits = LOGITS.repeat(3, 1)
    logits[1, 3] = poison
    first, broken, last = sample(logits, [row(**sampling) for _ in range(3)], NO_END, {})
    assert broken is None and first == last == choose(LOGITS[None], [row(**sampling)])[0]
    nothing = torch.full((1, 5), float("-inf"))
    assert sample(nothing, [row(**sampling)], NO_END, {}) == [None]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-40, "top_p": 0.9},
        {"temperature": 1e-40, "min_p": 1.0},
        {"temperature": 1e-40},
        {"repetition_penalty": 1e-40, "top_k": 1},
        {"top_p": 1e-40},
    ],
)
def test_values_next_to_zero_divide_nothing_by_zero(sampling: dict[str, Any]) -> None:
    (chosen,) = choose(LOGITS[None] * 1e4, [row([4], **sampling)])
    assert chosen.token == 0


def test_a_temperature_below_a_hundredth_counts_as_one() -> None:
    logits = torch.tensor([0.03, 0.02, 0.0]).expand(300, -1)
    at_floor, below = (
        [each.token for each in choose(logits, [row(seed=n, temperature=t) for n in range(300)])]
        for t in (0.01, 1e-9)
    )
    assert at_floor == below and len(set(below)) > 1


def test_biases_are_added_at_once_and_add_up() -> None:
    biased = row(temperature=0.0, logit_bias=[(4, 2.5), (4, 2.5), (1, -5.0)])
    assert choose(LOGITS[None], [biased])[0].token == 4


def test_a_log_probability_is_always_a_number_that_json_knows() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0]])
    (made,) = token_logprobs(logits, [1], 3)
    assert made.logprob == -9999.0 and min(value for _, value in made.top) == -9999.0
