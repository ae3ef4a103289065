"""What processes log, as text, of files that are emptied meanwhile."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.base.called import VARIABLE, hint
from cli.inspection import logs
from cli.inspection.logs import logs_of, show_logs
from shared.errors import ConfigError


def record(second: int, message: str, **fields: object) -> str:
    at = f"2026-01-01T00:00:{second:02}.000+00:00"
    return json.dumps({"time": at, "level": "info", "message": message, **fields}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    lines = record(1, "load", bytes=5) + "a line of a library\n" + record(4, "ready")
    (tmp_path / "logs" / "worker-0.log").write_text(lines)
    text = record(3, "it failed", level="error", exception="Traceback\nOSError: full")
    (tmp_path / "logs" / "worker-1.log").write_text(text)
    (tmp_path / "logs" / "nats.log").write_text("[1] listening\n")
    return tmp_path


def shown(folder: Path, service: str | None = None, num_lines: int = 100) -> list[str]:
    said: list[str] = []
    show_logs(logs_of(folder, service), num_lines, said.append, follow=False)
    return said


def test_lines_of_all_processes_are_in_order(folder: Path) -> None:
    assert shown(folder) == [
        "              nats      [1] listening",
        "00:00:01.000  worker-0  load  bytes=5",
        "00:00:01.000  worker-0  a line of a library",
        "00:00:03.000  worker-1  ERROR it failed\nTraceback\nOSError: full",
        "00:00:04.000  worker-0  ready",
    ]
    assert shown(folder, num_lines=1) == ["00:00:04.000  worker-0  ready"]
    assert shown(folder, num_lines=0) == []


def test_one_process_or_all_of_a_kind(folder: Path) -> None:
    assert len(shown(folder, "worker-0")) == 3
    assert len(shown(folder, "worker")) == 4
    with pytest.raises(ConfigError, match=r"no logs of work in .*: there are nats, wor"):
        logs_of(folder, "work")


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_comes_later_is_followed_though_the_file_is_emptied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "logs" / "worker-0.log"
    half = record(6, "cut in two")
    steps: list[Callable[[], object]] = [
        lambda: append(path, record(5, "more") + half[:20]),
        lambda: append(path, half[20:]),
        lambda: path.write_text(record(7, "emptied")),
    ]

    def act(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(time, "sleep", act)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        show_logs([path], 1, said.append, follow=True)
    assert [line.rpartition("  ")[2] for line in said] == [
        "ready", "more", "cut in two", "emptied",
    ]  # fmt: skip
    assert len(half) < logs.READ_BYTES_MAX


@pytest.mark.parametrize(
    ("typed", "on_path", "expected"),
    [
        ("./symphony", None, "./symphony up"),
        ("/opt/my apps/symphony", None, "'/opt/my apps/symphony' up"),
        ("/usr/bin/symphony", "/usr/bin/symphony", "symphony up"),
        ("./symphony", "/usr/bin/symphony", "./symphony up"),
        ("/checkout/cli/main.py", None, "./symphony up"),
    ],
)
def test_a_hint_shows_the_command_as_it_was_called(
    typed: str, on_path: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, typed)
    monkeypatch.setattr("shutil.which", lambda _: on_path)
    assert hint("up") == expected
