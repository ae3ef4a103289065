"""What a model's files say against serving it, before any process of a deployment is there."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM

from cli.inspection import model_checks, model_memory
from cli.inspection.doctor import examine
from cli.inspection.model_checks import check_models
from cli.inspection.model_memory import check_memory
from services.worker.config import WorkerConfig
from services.worker.models.checkpoint import Checkpoint, check_checkpoint
from services.worker.models.demo_model import make_demo_model
from shared.errors import ConfigError
from shared.runtime.memory import Memory

WEIGHTS = "model.safetensors"
GIB = 1024**3


def settings(**values: Any) -> WorkerConfig:
    return WorkerConfig(**values)


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def refused(folder: Path, words: str) -> None:
    """By `up`, at once, and by `doctor` in the same words."""
    config = settings(data_dir=folder.parent)
    with pytest.raises(ConfigError, match=words) as caught:
        check_models([str(folder)], folder.parent, config, 1, print)
    assert "\n" not in caught.value.message
    findings = examine(folder.parent, lambda: "", models=[str(folder)])
    assert caught.value.message in {each.text for each in findings if not each.is_fine}


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ, 4 bits"),
        ({"quant_method": "awq", "bits": 4}, "AWQ, 4 bits"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits"),
        ({"load_in_4bit": True}, "bitsandbytes, 4 bits"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({"quant_method": "mxfp4"}, "MXFP4"),
        ({"quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "a\nnew one"}, "quantization_config"),
    ],
)
def test_a_quantized_model_is_refused_with_what_to_do(
    said: dict[str, object], how: str, tmp_path: Path
) -> None:
    folder = make_demo_model(tmp_path / "mine")
    change_config(folder, quantization_config=said)
    with pytest.raises(ConfigError) as caught:
        check_checkpoint(str(folder))
    assert f"its weights are quantized ({how}), which this engine" in caught.value.message
    assert "up --engine vllm" in caught.value.message and "GGUF" in caught.value.message
    check_checkpoint(str(folder), may_be_quantized=True)
    change_config(folder, quantization_config=None, text_config={"quantization_config": said})
    with pytest.raises(ConfigError, match=r"are quantized"):
        check_checkpoint(str(folder))


@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_a_file_beside_the_config_says_that_a_model_is_quantized(file: str, tmp_path: Path) -> None:
    folder = make_demo_model(tmp_path / "mine")
    (folder / file).write_text("{}")
    refused(folder, rf"are quantized \((GPTQ|AWQ), says {file}\)")


def test_narrow_numbers_are_refused_whatever_the_config_says(tmp_path: Path) -> None:
    import torch

    folder = make_demo_model(tmp_path / "mine")
    weights = load_file(folder / WEIGHTS)
    name = next(iter(weights))
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    refused(folder, r"are quantized \(F8_E4M3 tensors\)")


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_demo_model(tmp_path / "mine")
    whole, config = (folder / WEIGHTS).read_bytes(), (folder / "config.json").read_bytes()
    for text in ("{", "[]", "\0"):
        (folder / "config.json").write_text(text)
        refused(folder, r"cannot load model '.*/mine': its config\.json (cannot be read|holds no)")
    (folder / "config.json").write_bytes(config)
    for size in (len(whole) - 8, 100, 0):
        (folder / WEIGHTS).write_bytes(whole[:size])
        refused(folder, r"model\.safetensors: damaged")
    (folder / WEIGHTS).unlink()
    refused(folder, r"there are no weights in it: none of model\.safetensors, ")
    index = {"weight_map": {"a.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, r"tensor a\.weight is missing: there is no model-00001-of-00002\.safetensors")


def test_a_mixture_that_lacks_experts_is_refused_and_a_whole_one_remembered(
    tmp_path: Path,
) -> None:
    config = MixtralConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=48, vocab_size=80, max_position_embeddings=64, num_local_experts=3,
    )  # fmt: skip
    folder = tmp_path / "mine"
    MixtralForCausalLM(config).save_pretrained(folder)
    said: list[str] = []
    wanted = settings(data_dir=tmp_path)
    check_models([str(folder)], tmp_path, wanted, 1, said.append)
    check_models([str(folder)], tmp_path, wanted, 1, said.append)
    assert said == ["checking mine (some seconds, once for these files)"]
    weights = load_file(folder / WEIGHTS)
    save_file(
        {name: each for name, each in weights.items() if ".1.block_sparse_moe.experts" not in name},
        folder / WEIGHTS, metadata={"format": "pt"},
    )  # fmt: skip
    refused(folder, r"tensors model\.layers\.1\.mlp\.experts\.down_proj, .* are missing")


@pytest.mark.parametrize(
    ("does", "words"),
    [("echo no memory >&2; kill -9 $$", "could not be checked (no memory)"),
     ("exec sleep 60", "was not checked within 0.5 s")],
)  # fmt: skip
def test_a_check_that_fails_itself_refuses_nothing(
    does: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, python = Path(make_demo_model(tmp_path / "mine")), tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr(model_checks, "PATIENCE_S", 0.5 if "sleep" in does else 60.0)
    said: list[str] = []
    for _ in range(2):  # nor is it remembered as done
        check_models([str(folder)], tmp_path, settings(data_dir=tmp_path), 1, said.append)
    assert sum(words in each for each in said) == 2


def test_only_models_that_the_user_brings_are_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_checks, "_check_loading", lambda *args: pytest.fail("it was"))
    make_demo_model(tmp_path / "symphony-demo")
    check_models(["demo", "minilm", "no/such"], tmp_path, settings(), 1, print)


def test_vllm_takes_what_is_quantized_and_nothing_damaged(tmp_path: Path) -> None:
    folder = make_demo_model(tmp_path / "mine")
    change_config(folder, quantization_config={"quant_method": "awq"})
    check_models([str(folder)], tmp_path, settings(engine="vllm"), 1, print)
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"model\.safetensors: damaged"):
        check_models([str(folder)], tmp_path, settings(engine="vllm"), 1, print)


def checkpoint(num_values: int) -> Checkpoint:
    return Checkpoint(10, 4 * num_values, {"F32": num_values}, is_generative=True)


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_memory, "measure_memory", lambda: Memory(4 * GIB, 1 * GIB))
    config = settings(device="cpu", dtype="bfloat16")
    said = check_memory([checkpoint(GIB)], config)
    assert said == "2.0 GiB of weights and 1.0 GiB of KV, of 4.0 GiB"
    check_memory([checkpoint(GIB)], config, num_workers=2)
    with pytest.raises(ConfigError, match=r"2\.0 GiB of weights and 3\.0 GiB of KV do not fit"):
        check_memory([checkpoint(GIB)], config, num_workers=3)
    with pytest.raises(ConfigError, match=r"SYMPHONY_KV_BYTES lower"):
        check_memory([checkpoint(GIB)], config.model_copy(update={"dtype": "float32"}))
    check_memory([checkpoint(GIB)], config.model_copy(update={"kv_bytes": GIB // 8}), 8)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "81559, 1024",
            r"2\.0 GiB of weights do not fit into GPU GPU-1: 1\.0 GiB of its 79\.6 GiB",
        ),
        ("81559, 80000", None),
        ("[N/A], [N/A]", None),
    ],
)
def test_what_a_gpu_has_not_free_is_refused(
    said: str, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{said}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    config = settings(dtype="bfloat16")
    if words is None:
        assert "fit into a GPU" in check_memory([checkpoint(GIB)], config)
        return
    with pytest.raises(ConfigError, match=words):
        check_memory([checkpoint(GIB)], config)
    check_memory([checkpoint(GIB)], config.model_copy(update={"device": "cpu"}))


def test_an_unknown_name_lists_the_built_in_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cli.models.prepare import prepare_model

    def away(url: str) -> None:
        raise OSError(f"no {url.rsplit('/', maxsplit=1)[-1]} of {url.split('/')[3]}\nand more")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", away)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape("demo, smollm2-135m, minilm")) as caught:
        prepare_model("smolm2", tmp_path, print)
    assert caught.value.message.endswith("from Hugging Face: no config.json of smolm2")
    assert caught.value.message.startswith("--model smolm2: ")
