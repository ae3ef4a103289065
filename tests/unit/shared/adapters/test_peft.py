"""What PEFT saves is checked, hashed and laid into pages as PEFT itself computes with it."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
)
from transformers.pytorch_utils import Conv1D

from loadtest.adapters import Module, Recipe, modules_in, write_adapter
from shared.adapters.check import BaseFacts, check_adapter
from shared.adapters.config import AdapterInvalid
from shared.adapters.image import build_image
from shared.adapters.layout import layout_image
from shared.adapters.source import AdapterLimits
from shared.adapters.values import values_hash
from shared.wire.messages import LoraCard, LoraTarget
from tests.unit.shared.adapters.adapter_files import unpack

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of what PEFT calls in transformers
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of what we ask PEFT for
    pytest.mark.filterwarnings("ignore:.*did not match any:RuntimeWarning"),  # nor are they to
]

NUM_LAYERS = 3
TOKENS = torch.arange(12)[None] % 64
NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS = {
    "llama": LlamaConfig(
        hidden_size=24, num_hidden_layers=NUM_LAYERS, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=40, vocab_size=64, **NO_TOKENS,
    ),
    "gpt2": GPT2Config(
        n_embd=24, n_layer=NUM_LAYERS, n_head=2, vocab_size=64, n_positions=64, **NO_TOKENS
    ),
    "gpt_neox": GPTNeoXConfig(
        hidden_size=24, num_hidden_layers=NUM_LAYERS, num_attention_heads=2,
        intermediate_size=40, vocab_size=64, **NO_TOKENS,
    ),
    "phi3": Phi3Config(
        hidden_size=24, num_hidden_layers=NUM_LAYERS, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=40, vocab_size=64, **NO_TOKENS,
    ),
}  # fmt: skip
PATHS = {"llama": "model.layers", "gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers"}


def make_model(config: PreTrainedConfig) -> Any:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(deepcopy(config))  # a model that is saved changes its


def card_of(model: Any, kind: str) -> LoraCard:
    """Every linear layer of it."""
    inner, outer = {}, []
    path = PATHS.get(kind, "model.layers")
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear | Conv1D):
            continue
        shape = tuple(module.weight.shape)
        num_out, num_in = shape if isinstance(module, torch.nn.Linear) else shape[::-1]
        if match := re.fullmatch(rf"{re.escape(path)}\.\d+\.(.+)", name):
            inner[match[1]] = LoraTarget(name=match[1], num_in=num_in, num_out=num_out)
        else:
            outer.append(LoraTarget(name=name, num_in=num_in, num_out=num_out))
    return LoraCard(
        layers_path=path,
        num_layers=NUM_LAYERS,
        element_bytes=4,
        dtype="float32",
        page_bytes=4096,
        targets=list(inner.values()),
        outer=outer,
    )


def save_with_peft(folder: Path, model: Any, **options: Any) -> Any:
    torch.manual_seed(2)
    config = peft.LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **options)
    wrapped = peft.get_peft_model(model, config)
    wrapped.save_pretrained(folder)
    return wrapped


def head_facts(model: Any) -> BaseFacts:
    bits = model.get_output_embeddings().weight.detach().numpy().view(np.uint32)
    return BaseFacts(weights={"lm_head": values_hash([bits], "F32")})


def assert_as_in_peft(folder: Path, wrapped: Any, card: LoraCard, facts: BaseFacts) -> int:
    """Every module's A, B and scale, and that no other has any. Returns how many there are."""
    checked = check_adapter(folder, card, AdapterLimits(), facts)
    layout = layout_image(card, checked.ranks)
    image = build_image(folder, card, layout, "float32", checked.adapter_hash)
    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in wrapped.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    }
    num_found = 0
    for number, each in enumerate(layout.targets):
        is_outer = number >= len(card.targets)
        for layer in [NUM_LAYERS - 1] if is_outer else range(NUM_LAYERS):
            name = (
                each.target.name if is_outer else f"{card.layers_path}.{layer}.{each.target.name}"
            )
            a, b, scale = unpack(image, card, layout, layer, number)
            if name not in layers:
                assert not a.any() and not b.any() and scale == 0
                continue
            num_found += 1
            module = layers[name]
            expected_a = module.lora_A["default"].weight.detach().numpy()
            expected_b = module.lora_B["default"].weight.detach().numpy()
            rank = len(expected_a)
            assert expected_a.any() and expected_b.any()
            assert rank <= checked.ranks[each.target.name] <= checked.lora_rank
            np.testing.assert_array_equal(a[:rank], expected_a)
            np.testing.assert_array_equal(b[:, :rank], expected_b)
            assert not a[rank:].any() and not b[:, rank:].any()
            assert scale == np.float32(module.scaling["default"])
    assert num_found == len(layers)
    return num_found


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_linear_layer(tmp_path: Path, kind: str) -> None:
    model = make_model(CONFIGS[kind])
    card = card_of(model, kind)
    wrapped = save_with_peft(
        tmp_path, model, r=5, lora_alpha=7, target_modules="all-linear",
        fan_in_fan_out=kind == "gpt2",
    )  # fmt: skip
    num = assert_as_in_peft(tmp_path, wrapped, card, BaseFacts())
    assert num == NUM_LAYERS * len(card.targets)


@pytest.mark.parametrize("is_rslora", [False, True])
def test_ranks_and_scales_by_pattern(tmp_path: Path, is_rslora: bool) -> None:
    """The first pattern counts, in the order of the file, where PEFT sorts them."""
    model = make_model(CONFIGS["llama"])
    card = card_of(model, "llama")
    wrapped = save_with_peft(
        tmp_path, model, r=8, lora_alpha=16, use_rslora=is_rslora,
        target_modules=["q_proj", "k_proj", "down_proj", "up_proj"],
        rank_pattern={
            r".*\.down_proj": 2,
            r"^model\.layers\.(0|2)\.mlp\.(up|down)_proj": 64,  # where none before it matches
            "k_proj": 1,  # an end
            r"layers\.[12]\..*q_proj": 17,
            "model.layers.0.self_attn.q_proj": 3,  # a whole name
            "proj": 200,  # the end of a word, which matches nothing
        },
        alpha_pattern={"k_proj|up_proj": 5, r"layers.\d.mlp.down_proj": 0.5, "q_proj": 3},
    )  # fmt: skip
    assert assert_as_in_peft(tmp_path, wrapped, card, BaseFacts()) == 4 * NUM_LAYERS
    checked = check_adapter(tmp_path, card, AdapterLimits())
    assert checked.ranks == {
        "self_attn.q_proj": 17, "self_attn.k_proj": 1, "mlp.down_proj": 2, "mlp.up_proj": 64,
    }  # fmt: skip
    assert checked.lora_rank == 64


def test_some_layers_only(tmp_path: Path) -> None:
    model = make_model(CONFIGS["gpt_neox"])
    card = card_of(model, "gpt_neox")
    wrapped = save_with_peft(
        tmp_path, model, r=4, target_modules=["query_key_value"], layers_to_transform=[0, 2]
    )
    assert assert_as_in_peft(tmp_path, wrapped, card, BaseFacts()) == 2


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_head_and_what_peft_writes_beside_it(tmp_path: Path, kind: str) -> None:
    model = make_model(CONFIGS[kind])
    card = card_of(model, kind)
    facts = head_facts(model)
    target = "q_proj" if kind == "llama" else "c_attn"
    wrapped = save_with_peft(tmp_path, model, r=6, target_modules=[target, "lm_head"])
    assert assert_as_in_peft(tmp_path, wrapped, card, facts) == NUM_LAYERS + 1
    copy = "base_model.model.lm_head.base_layer.weight"
    with pytest.raises(AdapterInvalid, match="not known here") as caught:
        check_adapter(tmp_path, card, AdapterLimits())
    assert caught.value.param == copy
    with pytest.raises(AdapterInvalid, match="differs from the base's") as caught:
        check_adapter(tmp_path, card, AdapterLimits(), BaseFacts(weights={"lm_head": "00" * 16}))
    assert caught.value.param == copy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_weight_of_the_base_is_known_in_every_dtype_that_holds_it(dtype: str) -> None:
    weight = torch.randn(7, 5).bfloat16()
    sources = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
    cast = weight.to(getattr(torch, dtype))
    bits = cast.view(torch.int32 if dtype == "float32" else torch.int16).numpy()
    bits = bits.view(np.uint32 if dtype == "float32" else np.uint16)
    wide = weight.float().numpy().view(np.uint32)
    if dtype == "float16":
        cast_back = cast.float().numpy().view(np.uint32)
        assert values_hash([bits], "F16") == values_hash([cast_back], "F32")
    else:
        assert values_hash([bits], sources[dtype]) == values_hash([wide], "F32")
    assert values_hash([wide[:3], wide[3:]], "F32") == values_hash([wide], "F32")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [(0, 2), (1, 3)]}, "layer_replication"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"kasa_config": {}}, "kasa_config"),
        ({"velora_config": {}}, "velora_config"),
        ({"monteclora_config": {}}, "monteclora_config"),
        ({"arrow_config": {}}, "arrow_config"),
        ({"use_bdlora": {}}, "use_bdlora"),
        ({"use_qalora": True}, "use_qalora"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"init_lora_weights": "corda"}, "init_lora_weights"),
        ({"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}, "init_lora_weights"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights"),
    ],
)
def test_what_peft_writes_for_a_kind_that_is_not_supported(
    tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    peft.LoraConfig(target_modules=["q_proj"], **options).save_pretrained(tmp_path)
    card = card_of(make_model(CONFIGS["llama"]), "llama")
    with pytest.raises(AdapterInvalid) as caught:
        check_adapter(tmp_path, card, AdapterLimits())
    assert caught.value.param == field
    assert caught.value.code == "adapter_invalid"


def test_a_field_of_peft_that_we_do_not_know_would_be_told() -> None:
    """A new version's field needs a look at what it changes."""
    from shared.adapters import config

    known = config._KNOWN | config._REFUSED.keys() | config._REFUSED_EVEN_EMPTY.keys()
    assert peft.LoraConfig.__dataclass_fields__.keys() - known == {"megatron_config"}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_an_adapter_of_ours_is_loaded_by_peft_and_changes_the_output(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    model = make_model(CONFIGS[kind])
    model.save_pretrained(tmp_path / "model")
    modules = modules_in(tmp_path / "model")
    assert modules == sorted(
        (
            Module(f"{card.layers_path}.{layer}.{each.name}", each.num_in, each.num_out)
            for card in [card_of(model, kind)]
            for layer in range(NUM_LAYERS)
            for each in card.targets
        ),
        key=lambda each: each.name,
    )
    recipe = Recipe(
        seed=3, rank=6, is_rslora=True, dtype=dtype, rank_pattern={r"layers\.0\..*": 2},
        alpha_pattern={"q_proj": 4}, layers=[0, 2],
    )  # fmt: skip
    folder = write_adapter(tmp_path / "adapter", modules, recipe)
    plain = model(TOKENS).logits
    wrapped = peft.PeftModel.from_pretrained(model, folder)
    assert_as_in_peft(folder, wrapped, card_of(make_model(CONFIGS[kind]), kind), BaseFacts())
    adapted = wrapped(TOKENS).logits
    assert adapted.isfinite().all()
    assert (adapted - plain).abs().max() > 0.1 * plain.std()
