"""What a reply is to be held to, checked before vLLM is asked."""

import asyncio
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from services.worker.core.vllm.forms import Form
from services.worker.device.grammar.vocabulary import Vocabulary
from services.worker.vllm.forms import BACKEND_FILE, FormCheck, has_tokenizer
from shared.errors import InvalidRequest
from shared.wire.grammar import byte_tokenizer
from tests.unit.worker.vllm.test_vllm_runner import INFO

GOOD = Form(grammar="start: /a+/", generated=[97])


def check(form: Form, *, is_possible: bool = True) -> None:
    forms = FormCheck(INFO, is_possible=is_possible)
    try:
        asyncio.run(forms.check(form))
    finally:
        forms.close()


@pytest.fixture
def known_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
        return byte_tokenizer()

    monkeypatch.setattr(Vocabulary, "tokenizer", tokenizer)


@pytest.mark.usefixtures("known_tokens")
def test_a_form_that_can_be_kept_is_taken() -> None:
    check(GOOD)


@pytest.mark.usefixtures("known_tokens")
@pytest.mark.parametrize(
    ("form", "is_possible", "why"),
    [
        (Form(grammar="start: b"), True, "unknown name"),
        (Form(grammar="start: /a+/", generated=[98]), True, "generated before"),
        (GOOD, False, "without a tokenizer"),
    ],
)
def test_any_other_is_refused_by_name(form: Form, is_possible: bool, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^grammar: .*{why}") as refused:
        check(form, is_possible=is_possible)
    assert refused.value.code == "grammar_failed"


def test_a_model_without_a_tokenizer_that_grammars_can_use_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
        raise ValueError("it does not tell its tokens")

    monkeypatch.setattr(Vocabulary, "tokenizer", tokenizer)
    with pytest.raises(InvalidRequest, match=r"tokenizer cannot be held .* its tokens"):
        check(GOOD)


def test_vllm_reads_the_tokenizer_of_a_model_that_has_one(tmp_path: Path) -> None:
    assert has_tokenizer("some/hub-id") and not has_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").touch()
    assert has_tokenizer(str(tmp_path))
    assert BACKEND_FILE.is_file()
