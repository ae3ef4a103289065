"""``symphony bench quantize``: what it costs in quality to store KV as int8, and saves in bytes.

A real model reads real text. The KV of its beginning is cut into the pages that leave a worker's
pool (`services.worker.device.copying.int8_pages`), rounded and widened as there, and the model goes
on from it, as a session does whose history comes from below; beside it, in the same batches, it
goes on from KV that was left as it was.

Perplexity is of the second halves of `--windows` windows of `--tokens` tokens. Greedy agreement is
of the first `--new` tokens behind `--prompts` prompts: the share that is the same, and how many
are before the first other one. Two exact ways differ as well, since sums are rounded: so the same
is told of prompts that were computed at once (``recomputed``).

Speeds are of pages as the model computes them, one thread, best of `--rounds`.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.kv_int8.select import dequantize_page, quantize_page
from kernels.kv_int8.torch_ops import stored_bytes
from loadtest.bench.compress import MODEL, ROOT, WIDTHS, best_s
from loadtest.bench.model_cache import cache_in, cache_name
from loadtest.models import MODELS_DIR, model_source
from shared.arena import Bytes
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest

MESSAGE_TOKENS = 32  # of a prompt, behind what comes from below


def run(argv: list[str]) -> dict[str, Any]:
    """Run the command; what it measured.

    Raises:
        InvalidRequest: an option cannot be.
        SymphonyError: there is no such model.
    """
    args = _arguments(argv)
    for name in ("windows", "prompts", "new", "rounds"):
        if getattr(args, name) < 1:
            raise InvalidRequest(f"--{name}: at least 1")
    if min(args.tokens // 2, args.history) < BLOCK_TOKENS:
        raise InvalidRequest(f"--tokens: at least {2 * BLOCK_TOKENS}, --history: {BLOCK_TOKENS}")
    by_dtype = {dtype: _measure(dtype, args) for dtype in WIDTHS}
    options = {name: getattr(args, name) for name in ("tokens", "windows", "prompts", "history")}
    return {"model": args.model, "text": args.text.name, **options, "by_dtype": by_dtype}


def _measure(dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = model_source(args, dtype)
    tokens = AutoTokenizer.from_pretrained(source)(args.text.read_text())["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    limit = model.config.get_text_config().max_position_embeddings
    num_prompt = args.history + MESSAGE_TOKENS
    if max(args.tokens, num_prompt + args.new) > limit:
        raise InvalidRequest(f"--tokens, or --history and --new: the model takes {limit}")
    windows = torch.tensor(_cuts(tokens, args.windows, args.tokens))
    prompts = torch.tensor(_cuts(tokens, args.prompts, num_prompt))
    with torch.inference_mode():
        pages = kv_pages(_read(model, windows[:1]))
        return {
            **_perplexities(model, windows),
            **_agreement(model, prompts, args.new),
            **_sizes(pages),
            **_speeds(pages, args.rounds),
        }


def _cuts(tokens: list[int], count: int, length: int) -> list[list[int]]:
    """So many pieces of a text, as far from each other as it is long."""
    if len(tokens) < length:
        raise InvalidRequest(f"the text has {len(tokens)} tokens, {length} are asked for")
    starts = np.linspace(0, len(tokens) - length, count).astype(int).tolist()
    return [tokens[start : start + length] for start in starts]


def kv_pages(cache: Any) -> torch.Tensor:
    """All whole blocks of a cache, a page for each in each layer: ``[pages, 2 * num_kv_heads,
    block_tokens, head_dim]``."""
    return torch.cat([_pages_of(layer.keys, layer.values) for layer in cache.layers])


def rounded_cache(cache: Any) -> Any:
    """A copy of a cache whose whole blocks were int8 in between.

    Args:
        cache: `transformers.DynamicCache`, of whole blocks.
    """
    from transformers import DynamicCache

    made = DynamicCache()
    for number, layer in enumerate(cache.layers):
        pages = _pages_of(layer.keys, layer.values)
        for page, stored in zip(pages, _stored(pages), strict=True):
            dequantize_page(stored, page)
        made.update(*_back(pages, layer.keys.shape), number)
    return made


def _copied_cache(cache: Any) -> Any:
    from transformers import DynamicCache

    made = DynamicCache()
    for number, layer in enumerate(cache.layers):
        made.update(layer.keys.clone(), layer.values.clone(), number)
    return made


def _pages_of(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """From ``[batch, heads, tokens, head_dim]`` to pages, those of a sequence side by side."""
    batch, heads, length, dim = keys.shape
    num_blocks = length // BLOCK_TOKENS
    both = torch.stack([keys, values], 1)[:, :, :, : num_blocks * BLOCK_TOKENS]
    blocks = both.reshape(batch, 2 * heads, num_blocks, BLOCK_TOKENS, dim).transpose(1, 2)
    return blocks.reshape(-1, 2 * heads, BLOCK_TOKENS, dim).contiguous()


def _back(pages: torch.Tensor, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, length, dim = shape
    blocks = pages.view(batch, -1, 2, heads, BLOCK_TOKENS, dim).permute(2, 0, 3, 1, 4, 5)
    keys, values = blocks.reshape(2, batch, heads, length, dim)
    return keys, values


def _stored(pages: torch.Tensor) -> Bytes:
    stored = np.empty((len(pages), stored_bytes(pages.shape[1:])), np.uint8)
    for page, out in zip(pages, stored, strict=True):
        quantize_page(page, out, BLOCK_TOKENS)
    return stored


def _read(model: Any, tokens: torch.Tensor) -> Any:
    """The cache of what was read: ``[batch, tokens]``."""
    return cache_in(model(tokens, use_cache=True, logits_to_keep=1))


def _perplexities(model: Any, windows: torch.Tensor) -> dict[str, float]:
    """Of the second halves, behind first halves as they are and rounded."""
    half = windows.shape[1] // 2 // BLOCK_TOKENS * BLOCK_TOKENS
    losses: dict[str, list[float]] = {"exact": [], "int8": []}
    for window in windows:
        cache = _read(model, window[None, :half])
        for name, history in (("int8", rounded_cache(cache)), ("exact", cache)):
            rest = window[None, half:]
            logits = model(rest, **{cache_name(model): history}, use_cache=True).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits.float(), rest[0, 1:])
            losses[name].append(loss.item())
    exact, int8 = (math.exp(sum(each) / len(each)) for each in losses.values())
    return {
        "perplexity_exact": round(exact, 4),
        "perplexity_int8": round(int8, 4),
        "perplexity_more_percent": round(100 * (int8 / exact - 1), 3),
    }


def _agreement(model: Any, prompts: torch.Tensor, num_new: int) -> dict[str, float]:
    num_history = prompts.shape[1] - MESSAGE_TOKENS
    whole = num_history // BLOCK_TOKENS * BLOCK_TOKENS
    cache = _read(model, prompts[:, :whole])
    said = {
        "": _say(model, prompts[:, whole:], rounded_cache(cache), num_new),
        "recomputed_": _say(model, prompts, None, num_new),
    }
    exact = _say(model, prompts[:, whole:], _copied_cache(cache), num_new)
    figures: dict[str, float] = {}
    for name, tokens in said.items():
        same = tokens == exact
        first = torch.cumprod(same.int(), 1).sum(1)  # how many are before the first other one
        figures[f"{name}agreement_percent"] = round(100 * same.float().mean().item(), 2)
        figures[f"{name}first_difference"] = round(first.float().mean().item(), 2)
        figures[f"{name}identical_percent"] = round(100 * (first == num_new).float().mean().item())
    return figures


def _say(model: Any, tokens: torch.Tensor, cache: Any, num_new: int) -> torch.Tensor:
    """Greedy tokens behind these: ``[batch, num_new]``."""
    said: list[torch.Tensor] = []
    while len(said) < num_new:
        out = model(tokens, **{cache_name(model): cache}, use_cache=True, logits_to_keep=1)
        tokens, cache = out.logits[:, -1].argmax(-1, keepdim=True), cache_in(out)
        said.append(tokens)
    return torch.cat(said, 1)


def _sizes(pages: torch.Tensor) -> dict[str, float]:
    exact, int8 = pages[0].nbytes, stored_bytes(pages.shape[1:])
    return {
        "page_kb": exact / 1024,
        "stored_page_kb": int8 / 1024,
        "saved_percent": round(100 * (1 - int8 / exact), 2),
    }


def _speeds(pages: torch.Tensor, rounds: int) -> dict[str, float]:
    stored, again = _stored(pages), torch.empty_like(pages)

    def quantize() -> None:
        for page, out in zip(pages, stored, strict=True):
            quantize_page(page, out, BLOCK_TOKENS)

    def dequantize() -> None:
        for page, each in zip(again, stored, strict=True):
            dequantize_page(each, page)

    quantize_s, dequantize_s = (best_s(work, rounds) for work in (quantize, dequantize))
    assert np.array_equal(_stored(again), stored), "what was rounded is rounded a second time"
    return {
        "quantize_gb_s": round(pages.nbytes / quantize_s / 1e9, 3),
        "dequantize_gb_s": round(pages.nbytes / dequantize_s / 1e9, 3),
    }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="symphony bench quantize", description=__doc__)
    parser.add_argument(
        "--model", default=MODEL, help=f"name, folder, GGUF file or hub id; default {MODEL}"
    )
    parser.add_argument("--models-dir", type=Path, default=MODELS_DIR)
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "architecture.md")
    parser.add_argument("--tokens", type=int, default=2048, help="of a window, default 2048")
    parser.add_argument("--windows", type=int, default=4, help="of the text, default 4")
    parser.add_argument("--prompts", type=int, default=32, help="from the text, default 32")
    parser.add_argument("--history", type=int, default=448, help="tokens of a prompt from below")
    parser.add_argument("--new", type=int, default=64, help="tokens that are said, default 64")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    return parser.parse_args(argv)
