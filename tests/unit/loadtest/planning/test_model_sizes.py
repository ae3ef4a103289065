"""What models' own files say of their size, without loading any."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from loadtest.planning.gguf_header import read_header
from loadtest.planning.model_sizes import of_config, sizes_of
from services.worker.models.demo_model import make_demo_model
from shared.errors import ConfigError
from shared.profiles import PROFILES
from tests.unit.cli.models.gguf_families import FAMILIES, make, write

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    "max_position_embeddings": 131_072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def test_weights_follow_from_a_config() -> None:
    sizes = of_config(LLAMA_8B, "llama")
    assert sizes.num_weights == pytest.approx(8_030_261_248, rel=0.001)
    assert (sizes.num_layers, sizes.num_kv_heads, sizes.head_size) == (32, 8, 128)
    assert (sizes.dtype_bytes, sizes.tokens_max) == (2, 131_072)
    token_bytes = 2 * sizes.num_layers * sizes.num_kv_heads * sizes.head_size * sizes.dtype_bytes
    assert token_bytes == PROFILES["a100-llama3-8b"].kv_bytes_per_token


def test_shared_embeddings_count_once_and_a_text_model_inside_another_is_found() -> None:
    whole = of_config(LLAMA_8B, "m").num_weights
    tied = of_config({**LLAMA_8B, "tie_word_embeddings": True}, "m").num_weights
    assert whole - tied == 128_256 * 4096
    assert of_config({"text_config": LLAMA_8B}, "m").num_weights == whole


def test_other_names_of_the_same_sizes_are_known() -> None:
    config = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257, "n_positions": 1024}
    sizes = of_config({**config, "dtype": "float32"}, "gpt2")
    assert (sizes.num_layers, sizes.num_kv_heads, sizes.head_size) == (12, 12, 64)
    assert (sizes.dtype_bytes, sizes.tokens_max) == (4, 1024)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 0}, "do not say hidden_size"),
        ({"hidden_size": "big"}, "do not say hidden_size"),
        ({"num_experts": 8}, "a mixture of experts"),
        ({"torch_dtype": "int4"}, "dtype 'int4'"),
    ],
)
def test_a_config_that_does_not_tell_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"--model m: .*{says}"):
        of_config({**LLAMA_8B, **changes}, "m")


def test_a_folder_s_own_files_say_how_much_its_weights_are(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    assert sizes_of(str(folder), tmp_path).num_weights == 500
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        sizes_of(str(folder), tmp_path)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no object"):
        sizes_of(str(folder), tmp_path)


def test_a_bundled_model_is_read_where_it_was_made_and_is_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model demo: not on this machine yet"):
        sizes_of("demo", tmp_path)
    make_demo_model(tmp_path / "symphony-demo")
    assert sizes_of("demo", tmp_path).num_layers > 0


def test_a_gguf_file_is_read_without_the_packages_that_convert_it(tmp_path: Path) -> None:
    model = make(FAMILIES["llama"])
    file = write(tmp_path / "tiny.gguf", FAMILIES["llama"], model)
    sizes = sizes_of(str(file), tmp_path)
    assert sizes.num_weights == sum(each.numel() for each in model.parameters())
    assert (sizes.num_layers, sizes.num_kv_heads) == (2, 2)
    assert (sizes.head_size, sizes.tokens_max) == (16, 512)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    model = make(FAMILIES["llama"])
    whole = write(tmp_path / "tiny.gguf", FAMILIES["llama"], model).read_bytes()
    file = tmp_path / "broken.gguf"
    for data in (
        b"",
        b"GGML" + whole[4:],
        whole[:4] + struct.pack("<I", 1) + whole[8:],
        whole[:200],
        whole[:16] + struct.pack("<Q", 1 << 40) + whole[24:],
        whole[:24] + struct.pack("<Q", 1 << 60) + whole[32:],
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"x" + struct.pack("<IIQ", 9, 10, 1 << 63),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"x" + struct.pack("<IIQ", 9, 9, 1),
    ):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=r"broken\.gguf: not a GGUF file"):
            read_header(file)
