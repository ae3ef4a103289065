"""GGUF files become models in transformers' format that compute the same."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from cli.models.gguf import convert
from cli.models.prepare import find_model, prepare_model
from services.worker.device.model import load_model
from shared.errors import ConfigError
from tests.unit.cli.gguf_files import logits, small_llama, write_gguf


def converted(tmp_path: Path, rule: str = "gpt-2", *, quantized: bool = False) -> Path:
    file = write_gguf(tmp_path / "tiny.gguf", small_llama(), rule=rule, quantized=quantized)
    folder = tmp_path / "out"
    folder.mkdir()
    assert convert(file, folder) == []
    return folder


def test_a_converted_model_computes_the_same(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted(tmp_path))
    assert np.abs(logits(model) - logits(small_llama())).max() < 1e-5


def test_quantized_weights_become_bfloat16_and_stay_near(tmp_path: Path) -> None:
    folder = converted(tmp_path, quantized=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert str(model.dtype) == "torch.bfloat16"
    assert np.abs(logits(model) - logits(small_llama())).max() < 0.05
    assert not hasattr(model.config, "quantization_config")


def test_a_reply_ends_at_the_end_of_a_turn_too(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [257, 258]
    assert load_model(str(folder), "cpu", "auto").end_token_ids == {257, 258}


@pytest.mark.parametrize(("rule", "digits"), [("gpt-2", ["12", "3"]), ("smollm", ["1", "2", "3"])])
def test_words_are_cut_as_the_file_says(tmp_path: Path, rule: str, digits: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, rule))
    assert tokenizer.tokenize("123") == digits
    text = "Don't  cut\n\n1234 <|eot|>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", small_llama(), rule="something-new")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.pre = 'something-new'"):
        convert(file, tmp_path / "out")


def test_a_file_is_converted_once_and_again_when_it_changed(tmp_path: Path) -> None:
    said: list[str] = []
    file = write_gguf(tmp_path / "My.Tiny-Q8.gguf", small_llama())
    assert find_model(str(file), tmp_path / "models") is None
    folder = Path(prepare_model(str(file), tmp_path / "models", said.append))
    assert folder.name == "My.Tiny-Q8" and (folder / "config.json").is_file()
    assert prepare_model(str(file), tmp_path / "models", said.append) == str(folder)
    assert find_model(str(file), tmp_path / "models") == folder
    assert len(said) == 1 and "converting My.Tiny-Q8" in said[0]
    file.write_bytes(b"GGUF but broken")
    with pytest.raises(ConfigError, match=r"My\.Tiny-Q8.*not a GGUF file"):
        prepare_model(str(file), tmp_path / "models", said.append)
    assert len(list((tmp_path / "models").glob("*/My*"))) == 1
