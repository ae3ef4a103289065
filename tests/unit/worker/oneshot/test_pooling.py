"""What sentence-transformers' files say, or that it is not done here."""

from pathlib import Path
from typing import Any

import pytest

from services.worker.oneshot.pooling import SENTENCE_FILES, Pooling, load_pooling
from shared.errors import ConfigError
from tests.unit.worker.oneshot.models import write_json

STEPS = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def make(folder: Path, **files: Any) -> str:
    """The files of an embedder that takes the mean, with `files` added or replaced."""
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    for name, content in {"modules": STEPS, **files}.items():
        write_json(folder / f"{name}.json", content)
    return str(folder)


@pytest.mark.parametrize("name", SENTENCE_FILES)
def test_the_longest_input_is_in_one_of_many_files(tmp_path: Path, name: str) -> None:
    files = {name.removesuffix(".json"): {"max_seq_length": 24, "do_lower_case": False}}
    assert load_pooling(make(tmp_path, **files)).max_tokens == 24


def test_the_files_are_known() -> None:
    kinds = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
    assert {f"sentence_{kind}_config.json" for kind in [*kinds, "mpnet"]} == set(SENTENCE_FILES)


def test_the_first_of_many_counts(tmp_path: Path) -> None:
    files = {"sentence_roberta_config": {"max_seq_length": 9}, "sentence_bert_config": {}}
    assert load_pooling(make(tmp_path, **files)).max_tokens is None


@pytest.mark.parametrize(
    "prompts",
    [
        {"default_prompt_name": None, "prompts": {"query": "query: "}},
        {"default_prompt_name": "document", "prompts": {"document": ""}},
        {},
    ],
)
def test_prompts_that_change_no_text_are_no_reason(tmp_path: Path, prompts: dict[str, Any]) -> None:
    source = make(tmp_path, config_sentence_transformers=prompts)
    assert load_pooling(source) == Pooling(("mean_tokens",), normalize=False)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case"),
        ({"sentence_albert_config": {"do_lower_case": True}}, "do_lower_case"),
        ({"sentence_bert_config": {"max_seq_length": "long"}}, "max_seq_length"),
        ({"sentence_bert_config": [24]}, "sentence_bert_config.json"),
        (
            {
                "config_sentence_transformers": {
                    "default_prompt_name": "query",
                    "prompts": {"query": "query: "},
                }
            },
            "default_prompt_name",
        ),
        ({"config_sentence_transformers": {"default_prompt_name": "q"}}, "default_prompt_name"),
        ({"modules": {"0": STEPS[0]}}, "modules.json"),
        ({"modules": ["Transformer"]}, "modules.json"),
        ({"modules": [{"path": ""}]}, "modules.json"),
        ({"modules": [STEPS[0], {"type": STEPS[1]["type"]}]}, "modules.json"),
        ({"modules": STEPS[:1]}, "names no pooling"),
    ],
)
def test_what_is_not_done_here_is_refused(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_pooling(make(tmp_path, **files))
