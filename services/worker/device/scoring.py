"""Which logits a step needs, and what a prompt's log-probabilities become of them."""

from services.worker.core.step import RowScoring, StepPlan
from shared.messages import TokenLogprobs

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


def prompt_logprobs(
    scoring: RowScoring, first_token: int, scores: list[TokenLogprobs]
) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt's tokens that a chunk's logits predict.

    Args:
        first_token: of the chunk.
        scores: of `scoring.targets`; position p predicts token p + 1.
    """
    first = [TokenLogprobs(token=first_token, logprob=None)] if scoring.is_first else []
    return first + scores
