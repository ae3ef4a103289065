"""Every command in README and docs is one that works: parsed by the program that it names, or held
against what it asks, or it stands in `OTHERS` with the reason why it cannot run here.

What is run of them: `tests/e2e/commands/test_docs.py`.
"""

import ast
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.blocks import SHELLS, Block, all_blocks, pages
from tests.docs.house_commands import check_curl, check_nats
from tests.docs.other_commands import OTHERS, SHELL, exported
from tests.docs.own_commands import Incomplete, check_python, check_symphony
from tests.docs.shell import Command, commands


def _python(command: Command) -> None:
    if command.words[1:3] == ["-m", "pip"]:
        CHECKS["pip"](replace(command, words=command.words[2:]))
    else:
        check_python(command)


CHECKS: dict[str, Callable[[Command], None]] = {
    "symphony": check_symphony,
    "python": _python,
    "python3": _python,
    "curl": check_curl,
    "nats": check_nats,
    **{name: other.check for name, other in OTHERS.items()},
}
TAKEN_FOR_THERE = (
    "fox/adapter_config.json",
    "models/my-llama/config.json",
    "models/Llama-3.2-1B-Instruct-Q4_K_M.gguf",
)
IN_PROSE = re.compile(r"(?<!`)`((?:[A-Z_]+=\S+ )*\./symphony [^`]+)`(?!`)")
FORM = re.compile(r"[\[\]|…]|\.\.\.|\b[A-Z]{3,}\b(?!_)")  # how a command is made, not one of them


@pytest.fixture
def readers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which everything is that pages take for there."""
    for name in TAKEN_FOR_THERE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("GGUF" if name.endswith(".gguf") else "{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fault(command: Command, *, complete: bool = True) -> str:
    """What is wrong with one command, empty: nothing.

    Args:
        complete: it has to have all of its arguments.
    """
    program = Path(command.name).name
    if program not in CHECKS:
        return f"{program!r}: no test knows this program"
    try:
        CHECKS[program](command)
    except Incomplete as error:
        return str(error) if complete else ""
    except Exception as error:
        return getattr(error, "message", "") or str(error) or repr(error)
    return ""


@pytest.mark.parametrize("block", all_blocks(SHELLS), ids=lambda block: block.place)
def test_every_command_is_right(block: Block, readers_folder: Path) -> None:
    before: dict[str, str] = {}
    for command in commands(block.text):
        command.settings = before | command.settings
        if command.name == "export":
            before |= exported(command)
        if wrong := fault(command):
            pytest.fail(f"{block.place}: {' '.join(command.words)}: {wrong}", pytrace=False)


@pytest.mark.parametrize("page", pages(), ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_command_in_prose_is_right(page: Path, readers_folder: Path) -> None:
    for found in IN_PROSE.finditer(page.read_text()):
        if not FORM.search(found[1].partition("./symphony")[2]):
            for command in commands(found[1].replace("\n", " ")):
                assert not (wrong := fault(command, complete=False)), wrong


def test_a_shell_reads_every_block() -> None:
    for block in all_blocks(SHELLS):
        done = subprocess.run(
            ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
        )
        assert not done.returncode and not done.stderr, f"{block.place}: {done.stderr}"


def test_python_reads_every_block() -> None:
    for block in all_blocks({"python", "py"}):
        compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("frobnicate --all", "no test knows"),
        ("./symphony upp", "No such command"),
        ("./symphony up --modle demo", "No such option"),
        ("./symphony up --workers 65", "less than or equal to 64"),
        ("./symphony up --emulate b100", "b100"),
        ("./symphony up --model ./nowhere", "no such folder"),
        ("SYMPHONY_KV_BYTE=1 ./symphony up", "no such setting"),
        ("SYMPHONY_KV_BYTES=much ./symphony up", "integer"),
        ("./symphony bench hnts", "no benchmark"),
        ("./symphony bench hints --wach", "unrecognized"),
        ("./symphony bench figures punica --only 7,99", "--only 99"),
        ("./symphony adapters ad fox ./fox", "No such command"),
        ("./symphony test tests/nowhere", "no tests/nowhere"),
        ("python -m services.nobody", "no module"),
        ("python -m loadtest.adapters OUT --model M --nope", "unrecognized"),
        ("curl http://127.0.0.1:8080/v1/nothing", "no GET"),
        ('curl http://127.0.0.1:8080/v1/embeddings -d \'{"model": "m"}\'', "input"),
        ("nats request symphony.worker.report '{}'", "not public"),
        ("nats request symphony.advisory.get '{\"session\": 1}'", "session_id"),
        ("docker compose up --scale wrker=2", "no wrker"),
        ("kubectl apply -k deploy/nowhere", "no deploy/nowhere"),
        ("pip install './clients/python[nothing]'", "no such extra"),
    ],
)
def test_what_is_wrong_is_found(line: str, why: str, readers_folder: Path) -> None:
    (command,) = commands(line)
    assert why in fault(command)


def test_every_reason_is_of_use() -> None:
    used = {Path(c.name).name for block in all_blocks(SHELLS) for c in commands(block.text)}
    assert not [name for name in OTHERS.keys() - used if OTHERS[name] is not SHELL]
