"""What a model's files say of its head, for adapters that bring a copy of it along."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.adapters.base_weights import ONE_FILE, BaseWeights
from shared.adapters.check import BaseFacts, check_adapter
from shared.adapters.config import AdapterInvalid
from shared.adapters.source import AdapterLimits
from shared.adapters.values import values_hash
from tests.unit.shared.adapters.test_peft import CONFIGS, card_of, make_model, save_with_peft

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of what PEFT calls in transformers
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of what we ask PEFT for
]


def head_hash(model: Any) -> str:
    bits = model.get_output_embeddings().weight.detach().float().numpy().view(np.uint32)
    return values_hash([bits], "F32")


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_head_is_known_from_the_files(
    tmp_path: Path, kind: str, dtype: torch.dtype, shard_size: str
) -> None:
    """Whether it has a weight of its own or shares the embeddings', in one file or in several."""
    model = make_model(CONFIGS[kind]).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / ONE_FILE).exists() == (shard_size == "5GB")
    assert BaseWeights(str(tmp_path))["lm_head"] == head_hash(model)


def test_a_copy_is_taken_if_it_is_the_model_s(tmp_path: Path) -> None:
    model = make_model(CONFIGS["llama"])
    card, base = card_of(model, "llama"), tmp_path / "base"
    model.save_pretrained(base)
    adapter = tmp_path / "adapter"
    save_with_peft(adapter, model, r=4, target_modules=["q_proj", "lm_head"])
    facts = BaseFacts(weights=BaseWeights(str(base)))
    known = check_adapter(adapter, card, AdapterLimits(), facts)
    again = check_adapter(adapter, card, AdapterLimits(), BaseFacts(weights=None))
    assert again.adapter_hash == known.adapter_hash

    other = make_model(CONFIGS["llama"])
    with torch.no_grad():
        other.get_output_embeddings().weight[0, 0] += 1
    other.save_pretrained(base)
    with pytest.raises(AdapterInvalid, match="differs from the base's"):
        check_adapter(adapter, card, AdapterLimits(), BaseFacts(weights=BaseWeights(str(base))))


@pytest.mark.parametrize("damage", ["none", "no file", "cut", "no json"])
def test_of_a_damaged_model_nothing_is_known(tmp_path: Path, damage: str) -> None:
    model = make_model(CONFIGS["llama"])
    model.save_pretrained(tmp_path)
    path = tmp_path / ONE_FILE
    whole = path.read_bytes()
    match damage:
        case "no file":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:-100])
        case "no json":
            path.write_bytes(whole[:8] + b"x" + whole[9:])
    assert ("lm_head" in BaseWeights(str(tmp_path))) == (damage == "none")
    assert "lm_head" not in BaseWeights("org/model")
