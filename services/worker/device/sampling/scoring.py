"""Which logits a step needs, and what a prompt's log-probabilities become of them."""

import math

from services.worker.core.step import StepPlan, StepResult
from shared.wire.messages import TokenLogprobs

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
