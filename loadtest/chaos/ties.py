"""Whether a reply that went another way may have: two tokens stood so close that rounding decides.

A forward pass sums in another order when other turns are in its batch, so logits differ in their
last bits. A choice whose draw falls between two tokens by no more than that may go either way, once
in some ten thousand tokens, and all that follows is another text. Anything else is wrong.
"""

import math
import random
from collections.abc import Mapping

from services.worker.device.sampling.sampler import uniform

TEMPERATURE = 0.8
TOP_K = 5
ROUNDING = 1e-4  # nats; float32 sums of this model differ by some 1e-5
TRIALS = 200


def may_choose(scores: Mapping[int, float], seed: int, position: int) -> set[int]:
    """Tokens that the sampler may draw if every score is wrong by up to `ROUNDING`.

    Args:
        scores: log-probabilities of the likeliest tokens; more than `TOP_K`.
        position: of the token in the reply.
    """
    rng = random.Random(seed)
    draw = uniform(seed, position)
    return {
        _choose(
            {token: score + rng.uniform(-ROUNDING, ROUNDING) for token, score in scores.items()},
            draw,
        )
        for _ in range(TRIALS)
    }


def _choose(scores: Mapping[int, float], draw: float) -> int:
    """As the worker does with a temperature and top-k."""
    kept = sorted(scores, key=lambda token: -scores[token])[:TOP_K]
    weights = [math.exp(scores[token] / TEMPERATURE) for token in kept]
    target, passed = draw * sum(weights), 0.0
    for token, weight in zip(kept, weights, strict=True):
        passed += weight
        if passed > target:
            return token
    return kept[-1]
