"""The part of docs/models.md that follows from the code in seconds: formats, quantized weights,
mixtures of experts, memory.
"""

import re
from collections.abc import Iterable
from typing import Any

from cli.models.gguf.architectures import ARCHITECTURES
from loadtest.bench.families.filling import filled
from loadtest.bench.families.variants import NEEDED
from loadtest.planning.gpus import GPUS, ModelSizes, derive_profile
from loadtest.planning.model_sizes import EXPERTS, of_config
from services.worker.load import CPU_KV_BYTES
from services.worker.models.checkpoint import PICKLED, QUANTIZED_NAMES, WHOLE
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest
from shared.profiles import kv_bytes

OTHERS_QUANTIZED = ("bitsandbytes", "compressed-tensors")  # as their configs call themselves
CARDS = ("l4", "l40s", "a100", "h200")


def _shape(hidden: int, layers: int, heads: int, inner: int, vocab: int, **more: Any) -> Any:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 8, "intermediate_size": inner, "vocab_size": vocab, **more,
    }  # fmt: skip


# By their config.json.
MODELS = {
    "Llama 3.2 1B": _shape(2048, 16, 32, 8192, 128_256, tie_word_embeddings=True),
    "Qwen3 4B": _shape(2560, 36, 32, 9728, 151_936, head_dim=128, tie_word_embeddings=True),
    "Llama 3.1 8B": _shape(4096, 32, 32, 14_336, 128_256),
    "Qwen3 14B": _shape(5120, 40, 40, 17_408, 151_936, head_dim=128),
    "Qwen3 32B": _shape(5120, 64, 64, 25_600, 151_936, head_dim=128),
    "Llama 3.1 70B": _shape(8192, 80, 64, 28_672, 128_256),
}


def tables(served: Iterable[str]) -> str:
    """Markdown.

    Args:
        served: families.
    """
    quantized = ", ".join((*dict.fromkeys(QUANTIZED_NAMES.values()), *OTHERS_QUANTIZED))
    experts = mixtures(served)
    of_gguf = {"mixtral", *(each.model_type for each in ARCHITECTURES.values())}  # as a llama
    return (
        "## Formats\n\n"
        "| format | read |\n|---|---|\n"
        f"| `{WHOLE}`, or shards by its index | yes; every tensor once, none left over |\n"
        f"| `{PICKLED}`, or shards by its index | yes, weights only: no code of it is run |\n"
        f"| one GGUF file | [converted](operations.md#gguf-files); {len(ARCHITECTURES)} "
        f"architectures; tensors of type {', '.join(gguf_types())} |\n\n"
        "## Quantized weights\n\n"
        f"{filled(f'Refused before the start by name: {quantized}, and any other '.split())} "
        "`quantization_config`.\nServe such a model by [vLLM](engines.md) (`./symphony up --engine "
        "vllm`), or take its weights as they were before,\nor a GGUF file, which is converted to "
        "bfloat16.\n\n"
        "## Mixtures of experts\n\n"
        f"Served ({len(experts)} families; those in bold also as GGUF files):\n"
        f"{_list(f'**`{name}`**' if name in of_gguf else f'`{name}`' for name in experts)}.\n"
        "Every expert must be in the checkpoint. Two commands do not take them: `plan`, to which "
        "their configs do not say\nwhat a pass reads, and `SYMPHONY_LAYERS=invariant`.\n\n"
        "## Memory\n\n"
        "Weights take their bytes on disk (2 a parameter in bfloat16, 4 in float32; "
        "`SYMPHONY_DTYPE` changes it). KV takes\n`2 x layers x KV heads x head size x bytes of the "
        f"dtype` a token, in blocks of {BLOCK_TOKENS} tokens. On a CPU a worker's\npool has "
        f"{CPU_KV_BYTES >> 30} GiB (`SYMPHONY_KV_BYTES`); on a GPU it has what weights leave. "
        "Tokens in the pool of one card\n(computed, bfloat16; -: the weights do not fit, and a "
        "model is not divided but [by vLLM](engines.md)):\n\n"
        f"{_sizes()}\n"
    )


def mixtures(served: Iterable[str]) -> list[str]:
    """Families whose config counts experts."""
    from transformers import AutoConfig

    found = []
    for family in served:
        config = AutoConfig.for_model(family, **NEEDED.get(family, {})).get_text_config()
        if any(getattr(config, key, None) for key in (*EXPERTS, "moe_num_experts")):
            found.append(family)
    return found


def gguf_types() -> list[str]:
    """What tensors of a GGUF file may be of, as its own names are."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    found = []
    for each in GGMLQuantizationType:
        try:
            dequantize(np.zeros(GGML_QUANT_SIZES[each][1], np.uint8), each)
        except NotImplementedError:
            continue
        found.append(each.name)
    return found


def served_families(page: str) -> list[str]:
    """Those that a page lists.

    >>> served_families("## Served\\n\\n`a` (default; x), `b`\\n\\n## Refused\\n\\n`c`")
    ['a', 'b']
    """
    listed = page.partition("## Served")[2].partition("## Refused")[0]
    return re.findall(r"`([\w.-]+)`", re.sub(r"\([^)]*\)", "", listed))


def _sizes() -> str:
    heads = [f"{card.upper()}, {GPUS[card].memory_gb:g} GB" for card in CARDS]
    lines = [
        f"| | weights, GB | KV a token, KiB | memory on a CPU, GiB | {' | '.join(heads)} |",
        "|---" * (len(heads) + 4) + "|",
    ]
    for name, config in MODELS.items():
        sizes = of_config(config, name)
        token_bytes = kv_bytes(
            num_layers=sizes.num_layers, num_kv_heads=sizes.num_kv_heads,
            head_size=sizes.head_size, dtype_bytes=sizes.dtype_bytes,
        )  # fmt: skip
        on_cpu = (sizes.weights_bytes + CPU_KV_BYTES) / 2**30
        cells = [f"{sizes.weights_bytes / 1e9:.1f}", f"{token_bytes >> 10}", f"{on_cpu:.1f}"]
        cells += [_tokens(sizes, card) for card in CARDS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _tokens(sizes: ModelSizes, card: str) -> str:
    try:
        return f"{derive_profile(sizes, card).num_kv_tokens // 1000 * 1000:,}"
    except InvalidRequest:
        return "-"


def _list(entries: Iterable[str]) -> str:
    return filled(entries, separator=", ")
