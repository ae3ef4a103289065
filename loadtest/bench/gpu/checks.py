"""Right first: kernels, recorded launches, copies and the whole executor against plain torch."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from kernels.paged_attention import AttentionShape, paged_attention, store_kv
from kernels.paged_attention.reference import paged_attention_reference
from loadtest.bench.gpu.kernels import make_batch
from loadtest.bench.gpu.models import TINY, GpuShape, make_executor, make_model
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SMALL = replace(
    TINY, num_layers=3, hidden=256, num_heads=8, num_kv_heads=2, head_dim=64, dtype=torch.float32
)


def check_all(device: torch.device) -> dict[str, Any]:
    """Run every check; what they came to.

    Raises:
        AssertionError: a result is wrong.
    """
    figures: dict[str, Any] = {}
    dtypes = [torch.float32, torch.bfloat16]
    for dtype in dtypes:
        figures[f"attention_error_{dtype}".replace("torch.", "")] = _check_attention(device, dtype)
    _check_store(device)
    figures["tokens_equal"] = _check_tokens(device)
    return figures


def _check_attention(device: torch.device, dtype: torch.dtype) -> float:
    """Largest error of decodes and of chunks over history, as a share of the norm."""
    shape = replace(SMALL, dtype=dtype, head_dim=128)
    scores = AttentionShape(128**-0.5)
    worst = 0.0
    for lengths, contexts in (([1] * 5, [1, 64, 65, 700, 129]), ([70, 5, 33], [70, 300, 97])):
        query, pool, batch = make_batch(device, shape, lengths, contexts)
        got = paged_attention(query, pool, 1, batch, scores)
        on_host = replace(batch, page_tables=batch.page_tables.cpu(), on_device=None)
        wanted = paged_attention_reference(query.cpu(), pool.cpu(), 1, on_host, scores)
        error = (got.cpu().double() - wanted.double()).norm() / wanted.double().norm()
        worst = max(worst, float(error))
    assert worst < TOLERANCE[dtype], f"attention in {dtype} is wrong by {worst:.2g}"
    return float(f"{worst:.2g}")


def _check_store(device: torch.device) -> None:
    pool = torch.zeros((5, 2, 2, 64, 64), device=device)
    key, value = (torch.randn((3, 2, 64), device=device) for _ in range(2))
    pages, offsets = (
        torch.tensor(each, dtype=torch.int32, device=device) for each in ([2, 0, 2], [5, 63, 6])
    )
    store_kv(key, value, pool, pages, offsets)
    for number, (page, offset) in enumerate(zip([2, 0, 2], [5, 63, 6], strict=True)):
        assert torch.equal(pool[page, 0, :, offset], key[number]), "a key is not where it belongs"
        assert torch.equal(pool[page, 1, :, offset], value[number]), "a value is not"
    assert int(pool.abs().flatten(1).any(1).sum()) == 2, "other pages were written"


def _check_tokens(device: torch.device) -> int:
    """Greedy tokens of turns in one batch, recorded and not, beside transformers' own generation
    one by one, in fp32. Returns how many tokens were compared.
    """
    prompts = [some_prompt(seed, 20 + 90 * seed, SMALL.vocab) for seed in range(4)]
    wanted = _generated(device, SMALL, prompts)
    for is_recorded in (False, True):
        model = make_model(device, SMALL)
        moves = Moves()
        pages = 64 * SMALL.num_layers
        executor = make_executor(model, pages, 6, moves, is_recorded=is_recorded)
        with ThreadPoolExecutor(1) as thread:
            engine = InProcessEngine(executor, thread, 128, turns_running_max=6)
            turns = [engine.submit(prompt, 12) for prompt in prompts]
            engine.run()
        tokens = [turn.generated for turn in turns]
        executor.close()
        assert tokens == wanted, f"recorded={is_recorded}: {tokens} instead of {wanted}"
    return sum(len(each) for each in wanted)


def _generated(device: torch.device, shape: GpuShape, prompts: list[list[int]]) -> list[list[int]]:
    model = make_model(device, shape, layers="plain")
    model.module.set_attn_implementation("eager")
    said = []
    with torch.inference_mode():
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(12):
                ids = torch.tensor([tokens], device=device)
                tokens.append(int(model.module(ids).logits[0, -1].argmax()))
            said.append(tokens[len(prompt) :])
    return said
