"""What a worker serves on vLLM, and what it refuses before anything starts."""

from pathlib import Path

import pytest

from services.worker.config import WorkerConfig
from services.worker.load import vllm_models
from shared.errors import ConfigError


def config_of(**settings: object) -> WorkerConfig:
    return WorkerConfig.model_validate({"engine": "vllm", **settings})


def test_folders_and_hub_ids_are_served_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    models = [str(tmp_path / "one"), "some/two"]
    assert vllm_models(config_of(models=models)) == [
        ("one", str(tmp_path / "one")),
        ("some/two", "some/two"),
    ]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (config_of(emulate="a100-llama3-8b"), "emulated"),
        (config_of(models=["a/b"], tasks={"a/b": "embed"}), "'embed'"),
    ],
)
def test_what_vllm_does_not_serve_is_refused_by_name(config: WorkerConfig, word: str) -> None:
    with pytest.raises(ConfigError, match=f"SYMPHONY_ENGINE='vllm'.*{word}"):
        vllm_models(config)
