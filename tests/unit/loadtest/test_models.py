"""Models to measure with."""

import argparse
from pathlib import Path

from loadtest.models import Shape, add_model_options, model_source, shape_of


def test_a_named_model_is_measured_in_its_own_shape(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    args = parser.parse_args(["--model", "demo", "--models-dir", str(tmp_path)])
    source = model_source(args, "")
    assert Path(source).parent == tmp_path
    shape = shape_of(source)
    assert shape == Shape(dtype="float32", vocab_size=260, num_layers=6, kv_width=4 * 32)
    assert shape.token_bytes == 2 * 6 * 128 * 4
