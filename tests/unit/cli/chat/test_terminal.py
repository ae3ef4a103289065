"""The prompt: keys, history, and the advisory at the first of them."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from cli.base.children import ROOT
from cli.chat.app import open_history
from cli.chat.reading import TerminalReader
from tests.unit.cli.chat.fake_server import fake_server

ALT_ENTER = "\x1b\r"
CTRL_C = "\x03"
CTRL_D = "\x04"
UP = "\x1b[A"


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def ask(reader: TerminalReader) -> tuple[str | None, int]:
    """What the user said, and how often it was announced."""
    announced: list[None] = []
    return reader.ask(lambda: announced.append(None)), len(announced)


def test_a_message_is_announced_once(keyboard: PipeInput) -> None:
    reader = TerminalReader(InMemoryHistory())
    keyboard.send_text("hello\rand\r")
    assert ask(reader) == ("hello", 1)
    assert ask(reader) == ("and", 1)


def test_it_is_announced_at_the_first_key(keyboard: PipeInput) -> None:
    reader = TerminalReader(InMemoryHistory())
    keyboard.send_text("h")
    said = reader.ask(lambda: keyboard.send_text("ello\r"))  # hangs if it waits for Enter
    assert said == "hello"


def test_commands_and_blanks_are_not_announced(keyboard: PipeInput) -> None:
    reader = TerminalReader(InMemoryHistory())
    keyboard.send_text("/forget\r  \r/etc/x\r")
    assert [ask(reader) for _ in range(3)] == [("/forget", 0), ("", 0), ("/etc/x", 1)]


def test_alt_enter_breaks_the_line(keyboard: PipeInput) -> None:
    keyboard.send_text(f"one{ALT_ENTER}two\r")
    assert ask(TerminalReader(InMemoryHistory())) == ("one\ntwo", 1)


def test_pasted_lines_are_one_message(keyboard: PipeInput) -> None:
    keyboard.send_text("\x1b[200~one\ntwo\x1b[201~\r")
    assert ask(TerminalReader(InMemoryHistory())) == ("one\ntwo", 1)


def test_ctrl_c_clears_and_ctrl_d_leaves(keyboard: PipeInput) -> None:
    reader = TerminalReader(InMemoryHistory())
    keyboard.send_text(f"wrong{CTRL_C}right\r{CTRL_D}")
    assert ask(reader) == ("right", 1)
    assert ask(reader) == (None, 0)


def test_bytes_that_are_no_text(keyboard: PipeInput) -> None:
    keyboard.send_bytes(b"caf\xe9\r")
    said, _ = ask(TerminalReader(InMemoryHistory()))
    assert said is not None
    said.encode()


def test_history_outlives_the_chat(keyboard: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "data" / "chats" / "history"
    keyboard.send_text(f"one{ALT_ENTER}more\r")
    ask(TerminalReader(open_history(path)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(open_history(path).load_history_strings()) == ["one\nmore"]


def test_history_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "history"
    for number in range(100):
        open_history(path).store_string(f"line {number}")
    kept = list(open_history(path, file_bytes_max=1000).load_history_strings())
    assert 5 < len(kept) < 50
    assert kept == [f"line {number}" for number in range(99, 99 - len(kept), -1)]
    assert path.stat().st_size <= 1000


def test_no_place_for_a_history(keyboard: PipeInput, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reader = TerminalReader(open_history(tmp_path / "file" / "history"))
    keyboard.send_text("one\r")
    assert ask(reader) == ("one", 1)


def test_the_arrow_up_brings_a_line_back(keyboard: PipeInput) -> None:
    reader = TerminalReader(InMemoryHistory())
    keyboard.send_text("one\r")
    ask(reader)
    keyboard.send_text(f"{UP}\r")
    assert ask(reader)[0] == "one"


def read_to(terminal: FileIO, end: bytes) -> None:
    shown = b""
    while end not in shown:
        assert select.select([terminal], [], [], 20)[0], shown
        shown += terminal.read(1) or b""


def test_a_terminal_gets_the_prompt(tmp_path: Path) -> None:
    our_end, its_end = pty.openpty()
    with fake_server() as server, FileIO(our_end, "r+") as terminal:
        words = ["-m", "cli.main", "chat", "--url", server.url, "--data-dir", str(tmp_path)]
        with subprocess.Popen(
            [sys.executable, "-P", *words],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TERM": "xterm",
                "PROMPT_TOOLKIT_NO_CPR": "1",
            },
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
        ) as talk:
            os.close(its_end)
            try:
                read_to(terminal, b"you>")  # keys sent before it listens could go unnoticed
                terminal.write(b"h")
                server.wait_for("/v1/advisories")
                assert server.sent_messages() == []
                terminal.write(b"i\r")
                read_to(terminal, b"Hello")
                read_to(terminal, b"you>")
                terminal.write(CTRL_D.encode())
                assert talk.wait(30) == 0
            finally:
                talk.kill()
    assert server.sent_messages() == [["hi"]]
    assert (tmp_path / "chats" / "history").read_text().endswith("+hi\n")
