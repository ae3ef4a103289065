"""Models to measure with."""

import argparse
from pathlib import Path

from loadtest.models import Shape, add_model_options, model_source, shape_of, with_tokenizer
from services.frontend.rendering.tokenizer import load_tokenizer
from services.worker.models.demo_model import make_demo_model


def test_a_named_model_is_measured_in_its_own_shape(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    args = parser.parse_args(["--model", "demo", "--models-dir", str(tmp_path)])
    source = model_source(args, "")
    assert Path(source).parent == tmp_path
    shape = shape_of(source)
    assert shape == Shape(dtype="float32", vocab_size=260, num_layers=6, kv_width=4 * 32)
    assert shape.token_bytes == 2 * 6 * 128 * 4


def test_a_model_without_a_tokenizer_is_served_with_a_word_for_each_token(tmp_path: Path) -> None:
    demo = make_demo_model(tmp_path / "demo")
    assert with_tokenizer(str(demo), tmp_path) == str(demo), "it has one"
    (demo / "tokenizer.json").unlink()
    (demo / "tokenizer_config.json").unlink()
    served = with_tokenizer(str(demo), tmp_path / "served")
    assert Path(served).name == "demo" and (Path(served) / "model.safetensors").is_file()
    assert not (demo / "tokenizer.json").exists(), "the model itself stays as it is"
    tokenizer = load_tokenizer(served)
    assert tokenizer.vocab_size == shape_of(str(demo)).vocab_size
    assert tokenizer.encode("w7 w259", special=True) == [7, 259]
    assert tokenizer.decode([7, 259]) == "w7 w259"
