"""A model is loaded with all of its weights and no others, or refused by the tensor's name."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

from services.worker.device.model import load_model
from services.worker.models.weights import load_weights
from services.worker.oneshot.torch_model import load_oneshot
from shared.errors import ConfigError

SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 80,
    "intermediate_size": 48, "max_position_embeddings": 64, "num_key_value_heads": 1,
}  # fmt: skip
BERT = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
WHOLE = "model.safetensors"
DEVICES = ("", "cpu", "meta")
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], None]


def llama(folder: Path, **config: Any) -> Path:
    LlamaForCausalLM(LlamaConfig(**{**SMALL, **config})).save_pretrained(folder)
    return folder


def mixtral(folder: Path) -> Path:
    MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=3)).save_pretrained(folder)
    return folder


def qwen3_moe(folder: Path) -> Path:
    config = Qwen3MoeConfig(**SMALL, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def granite_moe(folder: Path) -> Path:
    """Its experts are one tensor in the file."""
    GraniteMoeForCausalLM(GraniteMoeConfig(**SMALL, num_local_experts=3)).save_pretrained(folder)
    return folder


def bert(folder: Path, kind: Any = BertForMaskedLM) -> Path:
    kind(BertConfig(**BERT)).save_pretrained(folder)
    return folder


def edited(folder: Path, change: Change, name: str = WHOLE) -> Path:
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def drop(part: str) -> Change:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return change


def put(name: str, *shape: int) -> Change:
    def change(tensors: Tensors) -> None:
        tensors[name] = torch.ones(shape or (3,))

    return change


def refused(folder: Path, match: str, auto: Any = AutoModelForCausalLM, **options: Any) -> None:
    """Refused wherever the weights are to be: mapped, read straight to a device, or only looked
    for, as before a start.
    """
    for device in DEVICES:
        with pytest.raises(ConfigError, match=match):
            load_weights(auto, str(folder), device=device, **options)


def taken(folder: Path, auto: Any = AutoModelForCausalLM, **options: Any) -> None:
    for device in DEVICES:
        load_weights(auto, str(folder), device=device, **options)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("make", "change", "match"),
    [
        (llama, drop(UP), re.escape(UP) + " is missing"),
        (llama, drop("lm_head"), r"lm_head\.weight is missing"),
        (llama, drop("layers.1."), r"layers\.1\.[^,]+, .* and 6 more are missing"),
        (llama, put(UP, 47, 32), re.escape(UP) + r" is of another shape: it is \[47, 32\]"),
        (llama, put("model.layers.2.mlp.up_proj.weight"), r"layers\.2\.mlp.*is left over"),
        (llama, put("v_head.weight"), r"v_head\.weight is left over"),
        (llama, put("model.layers.0.self_attn.q_proj.bias", 32), r"q_proj\.bias is left over"),
        (mixtral, drop("experts"), r"experts\.down_proj, .* are missing"),
        (mixtral, drop("1.block_sparse_moe.experts.2.w1"), r"layers\.1\.mlp\.experts\.gate_up"),
        (mixtral, drop("1.block_sparse_moe.experts.2."), r"layers\.1\.mlp\.experts"),
        (qwen3_moe, drop("experts"), r"experts\.down_proj, .* are missing"),
        (qwen3_moe, drop("0.mlp.experts.1.up_proj"), r"layers\.0\.mlp\.experts\.gate_up"),
        (qwen3_moe, drop("mlp.experts.2."), r"layers\.0\.mlp\.experts.* another shape"),
        (
            granite_moe,
            drop("1.block_sparse_moe.input_linear"),
            r"moe\.experts\.gate_up_proj is missing",
        ),
        (mixtral, drop("block_sparse_moe.gate"), r"mlp\.gate\.weight, .* are missing"),
    ],
)
def test_a_decoders_weights_are_those_of_its_checkpoint(
    make: Callable[[Path], Path], change: Change, match: str, tmp_path: Path
) -> None:
    taken(make(tmp_path))
    refused(edited(tmp_path, change), match)


def test_what_holds_no_weights_may_be_left_over(tmp_path: Path) -> None:
    taken(edited(llama(tmp_path), put("model.layers.0.self_attn.rotary_emb.inv_freq")))
    taken(edited(llama(tmp_path), put("vision_tower.encoder.layers.0.mlp.weight")))
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=80))
    gpt2.save_pretrained(tmp_path)
    taken(edited(tmp_path, put("transformer.h.0.attn.masked_bias", 1)))


def test_a_shared_table_is_enough_for_both(tmp_path: Path) -> None:
    taken(edited(llama(tmp_path, tie_word_embeddings=True), drop("lm_head")))
    refused(edited(tmp_path, drop("embed_tokens")), r"embed_tokens\.weight.*missing")


def test_models_that_load_at_once_leave_tied_weights_tied(tmp_path: Path) -> None:
    """A worker loads one-shot models on order beside others."""
    tied = edited(llama(tmp_path, tie_word_embeddings=True), drop("lm_head"))
    with ThreadPoolExecutor(4) as threads:
        for loading in [threads.submit(taken, tied) for _ in range(12)]:
            loading.result()
    taken(tied)


def shards(folder: Path) -> list[str]:
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(folder, max_shard_size="20KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return sorted(set(index["weight_map"].values()))


def test_a_shard_is_as_the_index_says(tmp_path: Path) -> None:
    first, second, *_ = shards(tmp_path)
    taken(tmp_path)
    kept = (tmp_path / second).read_bytes()
    (tmp_path / second).write_bytes(kept[:-8])
    refused(tmp_path, rf"{second}: damaged")
    (tmp_path / second).unlink()
    refused(tmp_path, rf"missing: there is no {second}")
    (tmp_path / second).write_bytes(kept)
    held = load_file(tmp_path / second)
    name = next(iter(held))
    edited(tmp_path, put(name, *held[name].shape), first)
    refused(tmp_path, rf"{re.escape(name)} is there twice: in {first} and {second}")
    edited(tmp_path, drop(name), first)
    edited(tmp_path, put("extra.weight"), first)
    refused(tmp_path, rf"extra\.weight is left over: {first} has it")
    edited(tmp_path, drop("extra"), first)
    edited(tmp_path, drop(name), second)
    refused(tmp_path, rf"{re.escape(name)} is missing: {second} has it not")


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for text in (
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": "../b.safetensors"}}',
    ):
        index.write_text(text)
        refused(tmp_path, r"model\.safetensors\.index\.json")


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    file = llama(tmp_path) / WHOLE
    whole = file.read_bytes()
    for size in (len(whole) - 8, 100, 4, 0):
        file.write_bytes(whole[:size])
        refused(tmp_path, "cannot load model")


def test_pickled_weights_are_checked_alike(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    model.config.save_pretrained(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    weights = model.state_dict()
    torch.save(weights, file)
    taken(tmp_path)
    torch.save({**weights, "extra.weight": torch.ones(1)}, file)
    refused(tmp_path, r"extra\.weight is left over")
    del weights[UP]
    torch.save(weights, file)
    refused(tmp_path, re.escape(UP) + " is missing")
    file.write_bytes(file.read_bytes()[:-100])
    refused(tmp_path, "cannot load model")


def test_an_encoder_needs_its_body_only(tmp_path: Path) -> None:
    taken(bert(tmp_path), AutoModel, is_encoder=True)
    body = "bert.encoder.layer.1.output.dense.weight"
    refused(edited(tmp_path, drop(body)), r"layer\.1\.output\.dense", AutoModel, is_encoder=True)
    bert(tmp_path)
    edited(tmp_path, put(body.replace("layer.1", "layer.2")))
    refused(tmp_path, r"layer\.2\.output.* is left over", AutoModel, is_encoder=True)
    edited(bert(tmp_path, BertModel), drop("pooler"))
    taken(tmp_path, AutoModel, is_encoder=True)
    edited(tmp_path, put("linear.weight"))
    refused(tmp_path, r"linear\.weight is left over", AutoModel, is_encoder=True)


def test_a_classifiers_head_is_never_made(tmp_path: Path) -> None:
    auto = AutoModelForSequenceClassification
    refused(bert(tmp_path), r"classifier\.bias", auto)
    refused(bert(tmp_path, BertModel), r"classifier\.weight.*missing", auto)
    refused(llama(tmp_path), r"score\.weight is missing", auto)
    taken(bert(tmp_path, BertForSequenceClassification), auto)
    edited(tmp_path, put("classifier.weight", 5, 32))
    refused(tmp_path, r"classifier\.weight is of another shape", auto)
    RobertaForSequenceClassification(RobertaConfig(**BERT)).save_pretrained(tmp_path)
    taken(edited(tmp_path, put("roberta.pooler.dense.weight", 32, 32)), auto)


def test_models_are_loaded_by_it(tmp_path: Path) -> None:
    edited(llama(tmp_path / "decoder"), drop(UP))
    with pytest.raises(ConfigError, match=re.escape(UP)):
        load_model(str(tmp_path / "decoder"), "cpu", "auto")
    with pytest.raises(ConfigError, match=r"classifier\.bias"):
        load_oneshot(str(bert(tmp_path / "encoder")), "classify", "cpu", "auto")
    edited(tmp_path / "encoder", put("extra.weight"))
    with pytest.raises(ConfigError, match=r"extra\.weight"):
        load_oneshot(str(tmp_path / "encoder"), "embed", "cpu", "auto")
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        image_size=32, patch_size=16,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path / "images")
    edited(tmp_path / "images", drop("classifier.weight"))
    with pytest.raises(ConfigError, match=r"classifier\.weight is missing"):
        load_oneshot(str(tmp_path / "images"), "classify", "cpu", "auto")
