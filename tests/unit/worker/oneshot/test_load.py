"""Which task a model has."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from services.worker.load import plan_models
from services.worker.oneshot.model import task_of
from shared.errors import ConfigError
from tests.unit.worker.oneshot.models import (
    make_classifier,
    make_embedder,
    make_generator,
    make_image_classifier,
    make_reranker,
    settings,
)


@pytest.mark.parametrize(
    ("architecture", "num_labels", "has_pooling", "task"),
    [
        ("BertModel", 2, False, "embed"),
        ("ModernBertForMaskedLM", 2, False, "embed"),
        ("MistralModel", 2, False, "embed"),
        ("Qwen3ForCausalLM", 2, True, "embed"),
        ("Qwen3ForCausalLM", 2, False, "generate"),
        ("GPT2LMHeadModel", 2, False, "generate"),
        ("XLMRobertaForSequenceClassification", 1, False, "rerank"),
        ("LlamaForSequenceClassification", 3, False, "classify"),
        ("ViTForImageClassification", 1, False, "classify"),
    ],
)
def test_by_architecture(architecture: str, num_labels: int, has_pooling: bool, task: str) -> None:
    config = SimpleNamespace(architectures=[architecture], num_labels=num_labels)
    assert task_of(config, "m", has_pooling=has_pooling) == task


@pytest.mark.parametrize(("model_type", "task"), [("bert", "embed"), ("llama", "generate")])
def test_without_architecture_by_type(model_type: str, task: str) -> None:
    config = SimpleNamespace(architectures=None, model_type=model_type)
    assert task_of(config, "m", has_pooling=False) == task


def test_what_is_not_served_is_refused() -> None:
    config = SimpleNamespace(architectures=["BertForTokenClassification"], num_labels=2)
    with pytest.raises(ConfigError, match="SYMPHONY_TASKS"):
        task_of(config, "m", has_pooling=False)


def test_all_kinds_are_named_in_one_setting(tmp_path: Path) -> None:
    make_embedder(tmp_path / "embedder")
    make_reranker(tmp_path / "reranker")
    make_classifier(tmp_path / "classifier")
    make_image_classifier(tmp_path / "images")
    make_generator(tmp_path / "generator")
    names = ["embedder", "reranker", "classifier", "images", "generator"]
    config = settings(
        models=[str(tmp_path / name) for name in names], tasks={"classifier": "embed"}
    )
    plan = plan_models(config)
    assert [name for name, _, _ in plan] == names
    assert [task for _, _, task in plan] == ["embed", "rerank", "embed", "classify", "generate"]


def test_a_task_for_a_model_that_is_not_served_is_refused(tmp_path: Path) -> None:
    folder = make_embedder(tmp_path / "m")
    config = settings(models=[str(folder)], tasks={"n": "embed"})
    with pytest.raises(ConfigError, match="not served: n"):
        plan_models(config)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load"):
        plan_models(settings(models=[str(tmp_path)]))
