"""`symphony chat` through a pipe, against a server on a port."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.base.children import ROOT
from cli.chat.transcript import Transcripts
from cli.main import app
from tests.unit.cli.chat.fake_server import DONE, Answer, FakeServer, error, event, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def chat(server: FakeServer, data_dir: Path, said: str, *options: str) -> Result:
    words = ["chat", "--url", server.url, "--data-dir", str(data_dir), *options]
    result = CliRunner().invoke(app, words, input=said)
    assert result.exit_code == 0, result.output
    return result


def test_a_chat_and_its_lines(server: FakeServer, tmp_path: Path) -> None:
    result = chat(
        server, tmp_path, "one\n\n  \ntwo\n/help\n/nonsense\n/exit\nthree\n", "--session", "f[b]x"
    )
    assert server.sent_messages() == [["one"], ["one", "Hello", "two"]]
    assert result.stdout.startswith("m · session f[b]x · ")
    assert result.stdout.count("Hello\n") == 2
    assert "/forget" in result.stdout
    assert "no command /nonsense" in result.stderr
    assert {seen.body["session_id"] for seen in server.wait_for("/v1/advisories")} == {"f[b]x"}


def test_what_looks_like_a_path_is_a_message(server: FakeServer, tmp_path: Path) -> None:
    chat(server, tmp_path, "/etc/hosts holds what?\n")
    assert server.sent_messages() == [["/etc/hosts holds what?"]]


def test_after_a_refusal_the_chat_goes_on_without_the_message(
    server: FakeServer, tmp_path: Path
) -> None:
    server.answers = [Answer(error("context too long"), 400)]
    result = chat(server, tmp_path, "long\nshort\n")
    assert server.sent_messages() == [["long"], ["short"]]
    assert result.stderr == "symphony: context too long\n"
    assert "not sent" in result.stdout


def test_what_came_before_a_break_stays(server: FakeServer, tmp_path: Path) -> None:
    server.answers = [Answer(event("half"))]
    result = chat(server, tmp_path, "one\ntwo\n", "--session", "fox")
    assert server.sent_messages() == [["one"], ["one", "half", "two"]]
    assert "last event" in result.stderr and "not sent" not in result.stdout


def test_nothing_that_a_terminal_obeys_is_printed(server: FakeServer, tmp_path: Path) -> None:
    server.models = [{"id": "m\x1b[2J"}]
    server.answers = [
        Answer(event("a\x1b") + event("[31mb\u202e") + DONE),
        Answer(error("\x1b[5m"), 500),
    ]
    for said in ("one\ntwo\n", ""):  # as it comes, and from the transcript
        result = chat(server, tmp_path, said, "--session", "fox")
        assert not set("\x1b\u202e") & set(result.output)
        assert "a␛[31mb\n" in result.stdout


def test_a_session_goes_on_with_its_messages_and_model(server: FakeServer, tmp_path: Path) -> None:
    server.models = [{"id": "m"}, {"id": "other"}]
    said = "".join(f"number {number}\n" for number in range(3))
    chat(server, tmp_path, said, "--session", "fox", "--model", "other")
    result = chat(server, tmp_path, "four\n", "--session", "fox")
    assert "you> number 2\nHello\n" in result.stdout
    assert "number 0" not in result.stdout and "(2 earlier messages)" in result.stdout
    last = server.of("/v1/chat/completions")[-1].body
    assert last["model"] == "other"
    assert len(last["messages"]) == 7
    chat(server, tmp_path, "five\n", "--session", "fox", "--model", "m")
    assert server.of("/v1/chat/completions")[-1].body["model"] == "m"


def test_a_session_whose_model_has_gone_names_others(server: FakeServer, tmp_path: Path) -> None:
    chat(server, tmp_path, "one\n", "--session", "fox")
    server.models = [{"id": "other"}]
    words = ["chat", "--url", server.url, "--data-dir", str(tmp_path), "--session", "fox"]
    result = CliRunner().invoke(app, words, input="two\n")
    assert result.exit_code == 1
    assert "--model can be one of other" in result.stderr


def test_a_session_that_only_the_server_knows(server: FakeServer, tmp_path: Path) -> None:
    server.sessions = {"a/b"}
    assert "not on this machine" in chat(server, tmp_path, "", "--session", "a/b").stderr
    assert chat(server, tmp_path, "", "--session", "new").stderr == ""


def test_a_damaged_transcript_is_named_and_replaced(server: FakeServer, tmp_path: Path) -> None:
    path = Transcripts(tmp_path / "chats").path_of("fox")
    path.parent.mkdir()
    path.write_text("{")
    result = chat(server, tmp_path, "one\n", "--session", "fox")
    assert str(path) in result.stderr and len(result.stderr.splitlines()) == 1
    assert chat(server, tmp_path, "two\n", "--session", "fox").stderr == ""
    assert server.sent_messages()[-1] == ["one", "Hello", "two"]


def test_forget_deletes_here_and_there_and_begins_anew(server: FakeServer, tmp_path: Path) -> None:
    server.delete_status = 404  # already gone is as good
    chat(server, tmp_path, "one\n/forget\ntwo\n/new\nthree\n", "--session", "a/b")
    assert len(server.of("/v1/sessions/a%2Fb", "DELETE")) == 1
    assert server.sent_messages() == [["one"], ["two"], ["three"]]
    sessions = [seen.body["session_id"] for seen in server.of("/v1/chat/completions")]
    assert sessions[0] == "a/b" and len(set(sessions)) == 3
    transcripts = Transcripts(tmp_path / "chats")
    assert transcripts.load("a/b") is None
    assert transcripts.load(sessions[1]) is not None


def test_a_session_that_the_server_keeps_is_kept(server: FakeServer, tmp_path: Path) -> None:
    server.delete_status = 503
    result = chat(server, tmp_path, "one\n/forget\ntwo\n", "--session", "fox")
    assert "not forgotten" in result.stderr
    assert server.sent_messages()[-1] == ["one", "Hello", "two"]


def test_a_folder_that_takes_no_transcript_ends_no_chat(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = chat(server, tmp_path / "file", "one\ntwo\n")
    assert server.sent_messages()[-1] == ["one", "Hello", "two"]
    assert "is not kept in" in result.stderr


def test_bytes_that_are_no_text_end_no_chat(server: FakeServer, tmp_path: Path) -> None:
    words = ["chat", "--url", server.url, "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(app, words, input=b"caf\xe9\n")
    assert result.exit_code == 0
    assert server.sent_messages() == [["caf\ufffd"]]


@pytest.mark.parametrize("came", ["half", ""])
def test_ctrl_c_stops_the_answer_and_not_the_chat(
    server: FakeServer, tmp_path: Path, came: str
) -> None:
    server.answers = [Answer(event(came), is_held=True)]
    words = ["-m", "cli.main", "chat", "--url", server.url, "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-P", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as talk:
        assert talk.stdin is not None and talk.stdout is not None
        talk.stdin.write("one\n")
        talk.stdin.flush()
        talk.stdout.readline()
        server.wait_for("/v1/chat/completions")
        if came:
            assert talk.stdout.read(len(came)) == came
        talk.send_signal(signal.SIGINT)
        assert talk.stdout.readline() == "\n"
        assert talk.stdout.readline() == "stopped\n"
        talk.stdin.write("two\n")
        talk.stdin.close()
        rest = talk.stdout.read()
    assert talk.returncode == 0
    assert "Hello" in rest
    assert ("not sent" in rest) == (not came)
    assert server.sent_messages()[-1] == (["one", "half", "two"] if came else ["two"])
