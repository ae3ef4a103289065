"""What is read straight to a device is what the files hold."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    modeling_utils,
)

from services.worker.models import staging
from services.worker.models.staging import _Staging
from services.worker.models.weights import load_weights
from shared.errors import ConfigError

SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 80,
    "intermediate_size": 48, "max_position_embeddings": 64, "num_key_value_heads": 1,
}  # fmt: skip
PIECE = 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", PIECE)


@pytest.mark.parametrize("num", [0, 1, PIECE // 4, PIECE // 4 + 1, 5 * PIECE // 4, 3 * PIECE])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
)
def test_a_tensor_arrives_whole(num: int, dtype: torch.dtype) -> None:
    copies = _Staging(torch.device("cpu"))
    source = torch.randint(-100, 100, (num,)).to(dtype)
    for each in (source, source.reshape(1, num), torch.tensor(1).to(dtype)):
        found = copies.copy(each)
        assert found.shape == each.shape and found.dtype == dtype
        assert torch.equal(found.view(-1).view(torch.uint8), each.reshape(-1).view(torch.uint8))
        assert found.data_ptr() != each.data_ptr() or not num
    turned = torch.arange(600).reshape(20, 30).T
    assert torch.equal(copies.copy(turned), turned)


def test_a_piece_is_filled_again_only_when_the_device_has_read_it() -> None:
    said: list[str] = []

    class Event:
        def __init__(self, name: str) -> None:
            self._name = name

        def synchronize(self) -> None:
            said.append(f"wait {self._name}")

        def record(self) -> None:
            said.append(f"read {self._name}")

    copies = _Staging(torch.device("cpu"))
    copies._taken = [Event("a"), Event("b")]  # type: ignore[list-item]
    copies.copy(torch.zeros(PIECE + 1, dtype=torch.uint8))
    copies.copy(torch.zeros(PIECE, dtype=torch.uint8))
    assert said == ["wait b", "read b", "wait a", "read a", "wait b", "read b"]


def save(folder: Path, kind: str) -> None:
    if kind == "llama":
        LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(folder, max_shard_size="20KB")
    elif kind == "tied":
        LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)).save_pretrained(folder)
    else:  # experts are put together while they are loaded
        MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=3)).save_pretrained(folder)


@pytest.mark.parametrize("dtype", ["auto", torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "tied", "mixtral"])
def test_a_model_has_the_same_weights(kind: str, dtype: Any, tmp_path: Path) -> None:
    save(tmp_path, kind)
    check_model(tmp_path, "cpu", dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["llama", "tied", "mixtral"])
def test_a_model_on_a_gpu_has_the_same_weights(kind: str, tmp_path: Path) -> None:
    save(tmp_path, kind)
    check_model(tmp_path, "cuda", "auto")


def check_model(folder: Path, device: str, dtype: Any) -> None:
    plain = load_weights(AutoModelForCausalLM, str(folder), dtype=dtype)
    staged = load_weights(AutoModelForCausalLM, str(folder), device=device, dtype=dtype)
    expected, found = plain.state_dict(), staged.state_dict()
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert weight.device.type == device and weight.dtype == expected[name].dtype
        assert torch.equal(weight.cpu(), expected[name]), name
    buffers = dict(plain.named_buffers())
    for name, buffer in staged.named_buffers():
        assert buffer.device.type == device and torch.equal(buffer.cpu(), buffers[name])


def test_every_tensor_takes_this_way_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_copied, copy, opener = 0, _Staging.copy, modeling_utils.safe_open

    def count(self: _Staging, source: torch.Tensor) -> torch.Tensor:
        nonlocal num_copied
        num_copied += 1
        return copy(self, source)

    monkeypatch.setattr(_Staging, "copy", count)
    save(tmp_path, "llama")
    module = load_weights(AutoModelForCausalLM, str(tmp_path), device="cpu")
    assert num_copied == len(module.state_dict())
    load_weights(AutoModelForCausalLM, str(tmp_path))
    assert num_copied == len(module.state_dict())
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError):
        load_weights(AutoModelForCausalLM, str(tmp_path), device="cpu")
    assert modeling_utils.safe_open is opener
    monkeypatch.delattr(modeling_utils, "safe_open")
    with staging.staged_to("cpu"):
        assert not hasattr(modeling_utils, "safe_open")
