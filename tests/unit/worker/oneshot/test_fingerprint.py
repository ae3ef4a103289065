"""Two models are one only if every file agrees that changes what an input becomes."""

from pathlib import Path

import pytest

from services.worker.models.digest import weights_digest
from services.worker.oneshot.torch_model import load_oneshot
from shared.wire.messages import Task
from tests.unit.worker.oneshot.models import make_embedder, make_image_classifier, write_json


def fingerprint(folder: Path, task: Task = "embed") -> str:
    return load_oneshot(str(folder), task, "cpu", "auto").fingerprint


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "merges.txt",
        "sentencepiece.bpe.model",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
    ],
)
def test_of_texts(tmp_path: Path, name: str) -> None:
    folder = make_embedder(tmp_path, ["mean_tokens"])
    file = folder / name
    if not file.exists():
        file.write_text("{}")
    before, weights = fingerprint(folder), weights_digest(str(folder)).hexdigest()
    file.write_text(file.read_text() + "\n")
    assert fingerprint(folder) != before
    assert fingerprint(folder) == fingerprint(folder)
    assert weights_digest(str(folder)).hexdigest() == weights, "KV is of the weights alone"


def test_of_images(tmp_path: Path) -> None:
    folder = make_image_classifier(tmp_path)
    before = fingerprint(folder, "classify")
    file = folder / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"resample": 2', '"resample": 3'))
    assert fingerprint(folder, "classify") != before


def test_what_a_model_is_not_made_of_changes_nothing(tmp_path: Path) -> None:
    folder = make_embedder(tmp_path, ["mean_tokens"])
    before = fingerprint(folder)
    (folder / "README.md").write_text("hello")
    write_json(folder / "training.json", {})
    assert fingerprint(folder) == before
