"""Right first: what turns on adapters say in one batch, against PEFT.

Our tokens are shown to PEFT, one turn at a time. Each must be its own choice as well, or one that
its logits put as near to that as rounding does: in bf16, two tokens may well be as likely. How far
off a token may be is given in standard deviations of PEFT's logits there; a token that another
adapter chose is some four of them off.
"""

import torch

from loadtest.bench.lora.made import MadeAdapter
from loadtest.bench.lora.ours import Rows, Serving
from loadtest.bench.lora.peft_side import PeftSide
from loadtest.in_process_engine import some_prompt
from shared.errors import SymphonyError

TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.25, torch.float16: 0.05}
ADAPTERS_MAX = 3
LENGTHS = (9, 70)  # of prompts: of few rows, and of many, in more than one page
NUM_TOKENS = 6


class WrongTokens(SymphonyError):
    """What would be measured is not what PEFT computes."""

    code = "wrong_tokens"


def refuse_if_wrong(
    serving: Serving,
    peft: PeftSide,
    adapters: list[MadeAdapter],
    dtype: torch.dtype,
    vocab_size: int,
) -> int:
    """Run some turns on some adapters and on the base model in one batch.

    Returns:
        how many tokens were compared.

    Raises:
        WrongTokens: they are not PEFT's.
    """
    some: Rows = [None, *adapters[:ADAPTERS_MAX]]
    rows = [adapter for adapter in some for _ in LENGTHS]
    prompts = [
        some_prompt(number, length, vocab_size) for number, length in enumerate(LENGTHS * len(some))
    ]
    said = serving.greedy(rows, prompts, NUM_TOKENS)
    tolerance = TOLERANCE[dtype]
    for adapter, prompt, tokens in zip(rows, prompts, said, strict=True):
        off = _off(peft, adapter, prompt, tokens)
        name = "the base model" if adapter is None else f"adapter {adapter.ref.name}"
        if off > tolerance:
            raise WrongTokens(
                f"on {name} our tokens are off PEFT's by {off:.2g} deviations of its logits, more "
                f"than {tolerance:g}: {tokens}"
            )
        if adapter is not None and _off(peft, None, prompt, tokens) <= tolerance:
            raise WrongTokens(f"{name} says what the base model says: {tokens}")
    return sum(map(len, said))


def _off(
    peft: PeftSide, adapter: MadeAdapter | None, prompt: list[int], tokens: list[int]
) -> float:
    """How far the tokens behind a prompt are from those that PEFT holds for the likeliest."""
    logits = peft.logits(adapter, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float(((logits.amax(1) - chosen) / logits.std(1)).max())
