"""GGUF files become folders that the rest loads: types of numbers, ends of replies, words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from cli.models.gguf import convert
from cli.models.prepare import find_model, prepare_model
from services.worker.device.model import load_model
from shared.errors import ConfigError
from tests.unit.cli.models.gguf_families import Family, make, write

PROMPT = torch.arange(2, 42)[None]


def tiny(file: Path, **options: Any) -> Path:
    keys = {"tokenizer.ggml.eot_token_id": 258, **options.pop("keys", {})}
    family = Family("llama", "llama", keys=keys)
    return write(file, family, make(family), **options)


def converted(tmp_path: Path, **options: Any) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    assert convert(tiny(tmp_path / "tiny.gguf", **options), folder) == []
    return folder


def test_quantized_weights_become_bfloat16_and_stay_near(tmp_path: Path) -> None:
    def store(name: str, values: "np.ndarray[Any, Any]") -> tuple[Any, Any]:
        if values.ndim != 2:
            return values, None
        kind = GGMLQuantizationType.Q8_0
        return quants.quantize(values, kind), kind

    model = AutoModelForCausalLM.from_pretrained(converted(tmp_path, store=store))
    assert str(model.dtype) == "torch.bfloat16"
    assert not hasattr(model.config, "quantization_config")
    with torch.inference_mode():
        expected = make(Family("llama", "llama"))(PROMPT).logits
        assert (model(PROMPT).logits - expected).abs().mean() < 0.1 * expected.abs().mean()


def test_a_reply_ends_at_the_end_of_a_turn_too(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [257, 258]
    assert load_model(str(folder), "cpu", "auto").end_token_ids == {257, 258}


def test_a_makers_advice_on_sampling_is_kept(tmp_path: Path) -> None:
    keys = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    advised = load_model(str(converted(tmp_path, keys=keys)), "cpu", "auto").sampling
    assert (advised.temperature, advised.top_k) == (0.6, 20)


@pytest.mark.parametrize(("rule", "digits"), [("gpt-2", ["12", "3"]), ("smollm", ["1", "2", "3"])])
def test_words_are_cut_as_the_file_says(rule: str, digits: list[str], tmp_path: Path) -> None:
    folder = converted(tmp_path, keys={"tokenizer.ggml.pre": rule})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("123") == digits
    text = "Don't  cut\n\n1234 <|eot|>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.pre = 'something-new'"):
        converted(tmp_path, keys={"tokenizer.ggml.pre": "something-new"})


def test_a_file_is_converted_once_and_again_when_it_changed(tmp_path: Path) -> None:
    said: list[str] = []
    file = tiny(tmp_path / "My.Tiny-Q8.gguf")
    assert find_model(str(file), tmp_path / "models") is None
    folder = Path(prepare_model(str(file), tmp_path / "models", said.append))
    assert folder.name == "My.Tiny-Q8" and (folder / "config.json").is_file()
    assert prepare_model(str(file), tmp_path / "models", said.append) == str(folder)
    assert find_model(str(file), tmp_path / "models") == folder
    assert ["converting My.Tiny-Q8" in said[0], "converted My.Tiny-Q8" in said[1]] == [True, True]
    assert len(said) == 2, "once"
    file.write_bytes(b"GGUF but broken")
    with pytest.raises(ConfigError, match=r"My\.Tiny-Q8.*not a GGUF file"):
        prepare_model(str(file), tmp_path / "models", said.append)
    assert len(list((tmp_path / "models").glob("*/My*"))) == 1
