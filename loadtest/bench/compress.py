"""``symphony bench compress``: how much smaller a model's KV gets without loss, how fast, and on
which links and disks that pays.

A real model reads real text, and its KV is cut into the pages that a kvstore would have of it
(``[2, num_kv_heads, block_tokens, head_dim]``). Each is packed by itself, as runs in the object
store are (`services.kvstore.tiers.packing`): by zstd alone, and behind a shuffle by the bytes of
its numbers. What is unpacked is held against what was packed.

Speeds are of raw bytes, one thread, best of `--rounds`. Packing first and then sending, or reading
and then unpacking, takes ``1 / speed + 1 / (ratio x link)``, against ``1 / link``: it pays below
``speed x (1 - 1 / ratio)``. Who packs one page while he sends another gains up to that speed.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.model_cache import cache_in
from loadtest.models import MODELS_DIR, model_source
from services.kvstore.tiers.packing import LEVEL, pack, unpack
from shared.arena import Bytes
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = {"bfloat16": 2, "float32": 4}
MODEL = "smollm2-135m"


def run(argv: list[str]) -> dict[str, Any]:
    """Run the command; what it measured.

    Raises:
        InvalidRequest: an option cannot be.
        SymphonyError: there is no such model.
    """
    args = _arguments(argv)
    if args.tokens < BLOCK_TOKENS or args.rounds < 1:
        raise InvalidRequest(f"--tokens: at least {BLOCK_TOKENS}, and --rounds at least 1")
    by_dtype = {}
    for dtype, width in WIDTHS.items():
        pages = kv_pages(model_source(args, dtype), dtype, args.text.read_text(), args.tokens)
        by_dtype[dtype] = {
            "page_kb": pages.shape[1] / 1024,
            "num_pages": len(pages),
            "plain": _measure(pages, 1, args),
            "shuffled": _measure(pages, width, args),
        }
    return {
        "model": args.model,
        "text": args.text.name,
        "tokens": args.tokens,
        "level": args.level,
        "by_dtype": by_dtype,
    }


def kv_pages(source: str, dtype: str, text: str, num_tokens: int) -> Bytes:
    """KV of a text's first tokens, whole blocks of them: uint8 [num_pages, page_bytes], layer by
    layer.

    Raises:
        InvalidRequest: the model or the text has no room for so many.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(source)(text)["input_ids"][:num_tokens]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    num_max = model.config.get_text_config().max_position_embeddings
    if len(tokens) < num_tokens or num_tokens > num_max:
        raise InvalidRequest(
            f"--tokens {num_tokens}: the text has {len(tokens)}, the model takes {num_max}"
        )
    with torch.inference_mode():
        cache = cache_in(model(torch.tensor([tokens]), use_cache=True, logits_to_keep=1))
    num_blocks = num_tokens // BLOCK_TOKENS
    pages = []
    for layer in cache.layers:
        both = torch.stack([layer.keys[0], layer.values[0]])[:, :, : num_blocks * BLOCK_TOKENS]
        kind, heads, _, dim = both.shape
        blocks = both.reshape(kind, heads, num_blocks, BLOCK_TOKENS, dim).permute(2, 0, 1, 3, 4)
        raw = blocks.contiguous().view(torch.uint8).reshape(num_blocks, -1)
        pages.append(raw.numpy())
    return np.concatenate(pages)


def _measure(pages: Bytes, width: int, args: argparse.Namespace) -> dict[str, float]:
    page_bytes = pages.shape[1]
    packed = [pack(page, width, args.level) for page in pages]
    for page, each in zip(pages, packed, strict=True):
        assert np.array_equal(unpack(each, page_bytes), page), "a page did not come back"

    def pack_all() -> None:
        for page in pages:
            pack(page, width, args.level)

    def unpack_all() -> None:
        for each in packed:
            unpack(each, page_bytes)

    ratio = pages.nbytes / sum(map(len, packed))
    pack_gb_s = pages.nbytes / best_s(pack_all, args.rounds) / 1e9
    unpack_gb_s = pages.nbytes / best_s(unpack_all, args.rounds) / 1e9
    saved = max(1 - 1 / ratio, 0.0)
    return {
        "ratio": round(ratio, 3),
        "compress_gb_s": round(pack_gb_s, 3),
        "decompress_gb_s": round(unpack_gb_s, 3),
        "write_pays_below_gb_s": round(pack_gb_s * saved, 3),
        "read_pays_below_gb_s": round(unpack_gb_s * saved, 3),
    }


def best_s(work: Callable[[], None], rounds: int) -> float:
    """Seconds that it takes, the best of so many times."""
    took = []
    for _ in range(rounds):
        begun_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun_s)
    return min(took)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="symphony bench compress", description=__doc__)
    parser.add_argument(
        "--model", default=MODEL, help=f"name, folder, GGUF file or hub id; default {MODEL}"
    )
    parser.add_argument("--models-dir", type=Path, default=MODELS_DIR)
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "architecture.md")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text, default 2048")
    parser.add_argument("--level", type=int, default=LEVEL, help=f"of zstd, default {LEVEL}")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    return parser.parse_args(argv)
