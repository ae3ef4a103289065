"""Which server and which model a chat begins with."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.chat.address import base_url
from cli.chat.server import ServedModel, first_that_chats, require_chat
from cli.main import app
from shared.errors import InvalidRequest, NotFound
from tests.unit.cli.chat.fake_server import fake_server

CLASSIFIER = ServedModel("labels", "classify")
CHATTY = ServedModel("llama", "generate")
OTHER = ServedModel("qwen", "generate")


@pytest.mark.parametrize("written", ["", "/", "/v1", "/v1/", "//"])
def test_an_address_is_taken_with_and_without_v1(written: str) -> None:
    assert base_url(f"http://house:8080{written}") == "http://house:8080"
    assert base_url(f"https://house/at{written}") == "https://house/at"


@pytest.mark.parametrize(
    "url", ["house:8080", "ftp://house", "http://", "", "http://h:99999", "http://h/?a=1", "ht tp"]
)
def test_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="--url"):
        base_url(url)


def test_the_first_that_can_chat_is_taken() -> None:
    assert first_that_chats([CLASSIFIER, CHATTY, OTHER]) == "llama"
    with pytest.raises(NotFound, match=r"labels \(classify\)"):
        first_that_chats([CLASSIFIER])
    with pytest.raises(NotFound, match="no model"):
        first_that_chats([])


def test_a_named_model_must_be_there_and_chat() -> None:
    served = [CLASSIFIER, CHATTY, OTHER]
    assert require_chat(served, "qwen") == "qwen"
    with pytest.raises(InvalidRequest, match=r"labels.*classify.*llama, qwen"):
        require_chat(served, "labels")
    with pytest.raises(NotFound, match=r"gpt.*not served.*llama, qwen"):
        require_chat(served, "gpt")
    with pytest.raises(NotFound, match="nothing that is served can"):
        require_chat([CLASSIFIER], "gpt")
    with pytest.raises(NotFound) as raised:
        require_chat([ServedModel("\x1b[2J", "generate")], "gpt")
    assert "\x1b" not in raised.value.message


def test_models_are_asked_before_the_first_prompt(tmp_path: Path) -> None:
    def run(*options: str) -> tuple[int, str, str]:
        words = ["chat", "--url", server.url + "/v1/", "--data-dir", str(tmp_path), *options]
        result = CliRunner().invoke(app, words, input="hi\n")
        return result.exit_code, result.stdout, result.stderr

    with fake_server() as server:
        server.models = [{"id": "labels", "task": "classify"}, {"id": "foreign"}]
        assert run()[0] == 0
        assert [seen.body["model"] for seen in server.of("/v1/chat/completions")] == ["foreign"]
        code, shown, complaint = run("--model", "labels")
        assert (code, shown) == (1, "")
        assert len(complaint.splitlines()) == 1 and "foreign" in complaint
        server.models = "nonsense"
        assert "does not answer like" in run()[2]
        code, _, complaint = run("--session", "x" * 257)
        assert code == 1 and "256" in complaint
