"""The parts that ranks have of weights and of adapters: together they are the whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from services.worker.device.decoder.attention import ATTENTION
from services.worker.device.lora.sites import lora_card
from services.worker.device.parallel.images import split_image
from services.worker.device.parallel.split import (
    BY_INPUTS,
    BY_OUTPUTS,
    Shard,
    split_module,
    whole_card,
)
from shared.adapters.layout import SAME_LAYER, Tile, layout_image
from shared.arena import Bytes
from shared.errors import ConfigError
from shared.wire.messages import LoraCard
from tests.unit.worker.device.test_torch_executor import ARCHITECTURES, save_model

BIASED = {"attention_bias": True, "mlp_bias": True}


def part(folder: Path, shard: Shard) -> Any:
    module = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=ATTENTION)
    split_module(module, shard)
    return module


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_parts_of_the_weights_make_the_whole(kind: str, tmp_path: Path) -> None:
    whole = save_model(tmp_path, kind, num_key_value_heads=4, **BIASED)
    with torch.no_grad():
        for name, each in whole.named_parameters():
            if name.endswith("bias"):
                each.normal_()
    whole.save_pretrained(tmp_path)
    parts = [part(tmp_path, Shard(rank, 4)).state_dict() for rank in range(4)]
    for name, weight in whole.state_dict().items():
        of = name.removesuffix(".weight").removesuffix(".bias").split(".", 3)[-1]
        if of in BY_OUTPUTS:
            assert torch.equal(torch.cat([each[name] for each in parts]), weight), name
        elif of in BY_INPUTS and name.endswith("weight"):
            assert torch.equal(torch.cat([each[name] for each in parts], 1), weight), name
        elif of in BY_INPUTS:
            assert torch.equal(parts[0][name], weight), name
            assert not any(name in each for each in parts[1:]), "a bias is added once"
        else:
            assert all(torch.equal(each[name], weight) for each in parts), name


@pytest.mark.parametrize(
    ("kind", "changes", "num_ranks", "why"),
    [
        ("llama", {}, 4, "layer 0: 2 KV heads cannot be divided by 4"),
        ("llama", {"num_attention_heads": 1, "num_key_value_heads": 1}, 2, "1 heads cannot"),
        ("llama", {"intermediate_size": 97}, 2, "97 MLP units cannot be divided by 2"),
        ("phi3", {}, 2, "there is no self_attn.q_proj"),
        ("mixtral", {"num_local_experts": 2}, 2, "there is no mlp.gate_proj"),
        ("olmo2", {}, 2, r"self_attn.q_norm.weight \[64\] is nothing that is split or kept"),
        ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4}, 2, "there is no self_attn.q_proj"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    kind: str, changes: dict[str, Any], num_ranks: int, why: str, tmp_path: Path
) -> None:
    save_model(tmp_path, kind, **changes)
    with pytest.raises(ConfigError, match=rf"SYMPHONY_TENSOR_PARALLEL={num_ranks}: .*{why}"):
        part(tmp_path, Shard(0, num_ranks))


def matrices(
    image: Bytes, card: LoraCard, ranks: dict[str, int]
) -> dict[tuple[str, int, str], Any]:
    """By target, layer and side: its rows, tile by tile."""
    elements = image.view(np.uint32)
    found = {}
    for each in layout_image(card, ranks).targets:
        for side, tiles in (("a", each.a), ("b", each.b)):
            width = each.target.num_in if side == "a" else each.target.num_out
            for layer in range(card.num_layers):
                rows = np.zeros((each.rank, width), np.uint32)
                for tile in tiles:
                    read_tile(elements, tile, layer, rows)
                found[each.target.name, layer, side] = rows
    return found


def read_tile(elements: Any, tile: Tile, layer: int, rows: Any) -> None:
    at = layer if tile.layer == SAME_LAYER else tile.layer
    for row in range(tile.num_rows):
        start = tile.offset + row * tile.num_columns
        values = elements[at, tile.block, start : start + tile.num_columns]
        rows[tile.row + row, tile.column : tile.column + tile.num_columns] = values


@pytest.mark.parametrize("lora_rank", [3, 16, 64])
def test_one_side_of_each_pair_is_split_and_the_other_replicated(
    lora_rank: int, tmp_path: Path
) -> None:
    """Punica, section 7.2; ranks so large that columns are cut, and outer targets, too."""
    save_model(tmp_path, "llama")
    model: nn.Module = part(tmp_path, Shard(0, 2))
    page_bytes = 2 * 1 * 64 * 16 * 4
    of_rank = lora_card(model, 3, torch.float32, page_bytes)
    assert of_rank is not None
    card = whole_card(of_rank, 2)
    plain = lora_card(
        AutoModelForCausalLM.from_pretrained(tmp_path), 3, torch.float32, 2 * page_bytes
    )
    assert card == plain
    ranks = {each.name: lora_rank for each in (*card.targets, *card.outer)}
    shape = (3, layout_image(card, ranks).num_blocks, card.page_bytes)
    whole = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    both = split_image(whole, card, of_rank, ranks, 2)
    assert both.shape == (3, layout_image(of_rank, ranks).num_blocks, card.page_bytes)
    wanted = matrices(whole, card, ranks)
    images = [np.ascontiguousarray(each) for each in np.split(both, 2, axis=-1)]
    for image in images:
        scales = slice(4 * len(ranks))
        assert np.array_equal(image[:, 0, scales], whole[:, 0, scales])
    parts = [matrices(each, of_rank, ranks) for each in images]
    for (name, layer, side), rows in wanted.items():
        ours = [each[name, layer, side] for each in parts]
        if (side == "a" and name in BY_INPUTS) or (side == "b" and name in BY_OUTPUTS):
            assert np.array_equal(np.concatenate(ours, -1), rows), (name, layer, side)
        else:
            assert all(np.array_equal(each, rows) for each in ours), (name, layer, side)
