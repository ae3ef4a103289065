"""GGUF files of each family compute what their models do, or are refused by a key's or a tensor's
name.
"""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cli.models.gguf import convert
from cli.models.gguf.architectures import ARCHITECTURES
from cli.models.gguf.keys import NEUTRAL, Metadata
from cli.models.gguf.reading import Reading
from shared.errors import ConfigError
from tests.unit.cli.models.gguf_families import FAMILIES, Family, make, write

PROMPT = torch.arange(2, 152)[None]
# What others show nearly as well: the usual run leaves them out.
SELDOM = {
    "llama tied, heads of 24", "llama, linear by the old key", "qwen2 tied", "qwen2, yarn",
    "qwen3 with biases", "phi3", "phi3 with a window", "granite moe", "stablelm", "command-r",
    "gemma3 1b",
}  # fmt: skip


def converted(tmp_path: Path, family: Family, model: Any = None, **changes: Any) -> Path:
    file = write(tmp_path / "tiny.gguf", family, model or make(family), **changes)
    folder = tmp_path / "out"
    folder.mkdir()
    convert(file, folder)
    return folder


def refused(tmp_path: Path, family: Family, match: str, **changes: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        converted(tmp_path, family, **changes)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SELDOM else []) for name in FAMILIES],
)
def test_a_converted_model_computes_the_same(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = make(family)
    folder = converted(tmp_path, family, model)
    got, info = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values())
    with torch.inference_mode():
        expected, answer = model(PROMPT).logits, got(PROMPT).logits
    assert (expected - answer).abs().max() < 1e-3 * expected.abs().max()


def test_every_architecture_is_tried() -> None:
    assert {family.architecture for family in FAMILIES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize("layers", [26, 34, 42, 46, 62])
def test_gemmas_attention_is_scaled_as_its_size_has_it(architecture: str, layers: int) -> None:
    heads, hidden, head_dim = 32, 5376, 128
    keys = {
        f"{architecture}.{key}": value
        for key, value in {
            "block_count": layers, "attention.head_count": heads, "embedding_length": hidden,
            "attention.key_length": head_dim, "attention.value_length": head_dim,
            "feed_forward_length": 96, "context_length": 512, "attention.sliding_window": 32,
            "attention.layer_norm_rms_epsilon": 1e-6,
        }.items()
    }  # fmt: skip
    reading = Reading(Metadata(keys, architecture), {}, lambda _: np.zeros(0, dtype=np.float32))
    if layers == {"gemma2": 46, "gemma3": 62}[architecture]:
        ARCHITECTURES[architecture].read(reading)
        assert reading.config["query_pre_attn_scalar"] == 168
        return
    with pytest.raises(ConfigError, match=rf"{architecture}\.attention\.scale is missing"):
        ARCHITECTURES[architecture].read(reading)


# Keys and values that change what is computed, of architectures that do not read them.
CHANGING = {
    **{key: 0.5 for key, allowed in NEUTRAL.items() if key != "expert_feed_forward_length"},
    "something_new": 3,
    "attention.something_new": True,
    "attention.scale": 0.3,
    "attention.causal": False,
    "attention.sliding_window": 16,
    "attention.value_length": 8,
    "attention.key_length_mla": 8,
    "rope.dimension_count": 8,
    "rope.dimension_sections": [4, 4, 8, 0],
    "rope.scaling.type": "longrope",
    "rope.scaling.attn_factor": 1.2,
    "rope.scaling.alpha": 1000.0,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "pooling_type": 3,
    "block_count": 3,
    "embedding_length": 0,
    "attention.head_count_kv": 3,
    "vocab_size": 261,
    "expert_count": 4,
    "attention.head_count": [4, 2],
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.something_new": 1,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.ggml.bos_token_id": 260,
    "general.type": "adapter",
    "general.architecture": "mamba",
    "split.count": 3,
}


@pytest.mark.parametrize("key", CHANGING)
def test_a_key_that_is_not_read_is_refused_by_its_name(key: str, tmp_path: Path) -> None:
    family = Family("qwen2", "qwen2", keys={key: CHANGING[key]})
    tensor = {"attention.head_count_kv": r"attn_k\.weight"}.get(key)
    refused(tmp_path, family, tensor or re.escape(key))


def test_a_key_that_is_known_to_change_nothing_is_taken(tmp_path: Path) -> None:
    keys: dict[str, Any] = {key: float(allowed[-1]) for key, allowed in NEUTRAL.items()}
    keys |= {
        "general.author": "somebody", "quantize.imatrix.file": "x", "mine.own.key": "y",
        "rope.scaling.finetuned": True, "expert_count": 0, "attention.causal": True,
        "attention.sliding_window": 512, "rope.scaling.type": "none", "split.count": 1,
        "tokenizer.chat_templates": ["tools"], "tokenizer.chat_template.tools": "x",
    }  # fmt: skip
    converted(tmp_path, Family("qwen2", "qwen2", keys=keys))


@pytest.mark.parametrize("name", ["llama with biases", "mixtral", "qwen2 moe", "gemma2", "gpt2"])
def test_a_missing_tensor_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = make(family)
    file = write(tmp_path / "whole.gguf", family, model)
    names = [tensor.name for tensor in gguf.GGUFReader(file).tensors]
    for index, missing in enumerate(names):
        if missing == "output.weight" or (index % 4 and "exps" not in missing):
            continue  # a model without an output shares its table
        part = write(tmp_path / "part.gguf", family, model, without=missing)
        with pytest.raises(ConfigError, match=re.escape(missing.split(".", 2)[-1])):
            convert(part, tmp_path)


@pytest.mark.parametrize(
    "left",
    ["rope_freqs.weight", "blk.0.attn_sinks.weight", "blk.2.attn_q.weight", "blk.0.attn_q.scale"],
)
def test_a_tensor_left_over_is_refused_by_its_name(left: str, tmp_path: Path) -> None:
    extra = {left: np.ones(8, dtype=np.float32)}
    refused(tmp_path, FAMILIES["qwen3"], re.escape(left), extra=extra)


def test_a_tensor_of_another_shape_is_refused_by_its_name(tmp_path: Path) -> None:
    extra = {"blk.1.ffn_up.weight": np.ones((95, 64), dtype=np.float32)}
    match = r"blk\.1\.ffn_up\.weight \[95, 64\].*mlp\.up_proj\.weight is \[96, 64\]"
    refused(tmp_path, FAMILIES["qwen3"], match, extra=extra)


def test_divisors_of_another_length_are_refused(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.ones(7, dtype=np.float32)}
    refused(tmp_path, FAMILIES["llama"], r"rope_freqs\.weight has shape", extra=extra)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_numbers_that_divide_nothing_are_refused(value: float, tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.array([1.0] * 7 + [value], dtype=np.float32)}
    refused(tmp_path, FAMILIES["llama"], r"rope_freqs\.weight", extra=extra)


def test_llama_3s_rule_is_recovered_and_other_divisors_are_kept(tmp_path: Path) -> None:
    rope = AutoConfig.from_pretrained(converted(tmp_path, FAMILIES["llama 3.2"])).rope_parameters
    assert rope == FAMILIES["llama 3.2"].config["rope_parameters"]
    (tmp_path / "other").mkdir()
    folder = converted(tmp_path / "other", FAMILIES["llama with other divisors"])
    rope = AutoConfig.from_pretrained(folder).rope_parameters
    assert rope["rope_type"] == "longrope" and rope["long_factor"] == rope["short_factor"]


def test_what_a_file_cannot_say_is_remarked_on(tmp_path: Path) -> None:
    family = FAMILIES["qwen3 moe"]
    file = write(tmp_path / "tiny.gguf", family, make(family))
    (tmp_path / "out").mkdir()
    assert "norm_topk_prob: True is taken" in convert(file, tmp_path / "out")[0]


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K]
)
def test_quantized_tensors_become_what_they_stand_for(kind: Kind, tmp_path: Path) -> None:
    stored: dict[str, Any] = {}
    generator = np.random.default_rng(0)

    def store(name: str, values: Any) -> tuple[Any, Any]:
        if values.ndim == 1:
            return values, None
        if kind in (Kind.Q4_K, Kind.Q6_K):  # of these the package only reads
            _, num_bytes = gguf.GGML_QUANT_SIZES[kind]
            shape = (values.shape[0], values.shape[1] // 256 * num_bytes)
            data = generator.integers(0, 60, shape, dtype=np.uint8)
        else:
            data = gguf.quants.quantize(values, kind)
        stored[name] = gguf.quants.dequantize(data, kind)
        return data, kind

    family = Family("qwen2", "qwen2", {"hidden_size": 256, "intermediate_size": 512})
    folder = converted(tmp_path, family, store=store)
    got = load_file(folder / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    expected = torch.from_numpy(np.array(stored["blk.1.ffn_down.weight"])).to(torch.bfloat16)
    assert torch.equal(got, expected)


def test_special_tokens_are_kept_whole_in_any_script(tmp_path: Path) -> None:
    texts = ["<｜User｜>", "<|im_end|>", "<think>"]
    tokens = ["1", "2", "12", *[f"t{index}" for index in range(254)], *texts]
    keys = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 257 + [3, 3, 4],
        "general.sampling.temp": 0.6,
    }
    folder = converted(tmp_path, Family("qwen2", "qwen2", keys=keys))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("".join(texts), add_special_tokens=False) == [257, 258, 259]
    assert tokenizer.decode([257, 259]) == "<｜User｜><think>"
