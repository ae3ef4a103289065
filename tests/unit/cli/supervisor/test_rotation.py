"""Logs that are put aside: what is kept, what is lost, and a disk that is full."""

import errno
import os
from io import FileIO
from pathlib import Path

import pytest

from cli.supervisor import rotation
from cli.supervisor.rotation import CHECK_EVERY_NS, LogKeeper, put_aside


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_three_are_kept_and_the_writer_goes_on_at_the_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("a", buffering=1) as writer:  # as children do
        for number in range(5):
            writer.write(f"{number}\n")
            put_aside(log)
        writer.write("now\n")
    assert contents(tmp_path) == {
        "a.log": "now\n", "a.log.1": "4\n", "a.log.2": "3\n", "a.log.3": "2\n",
    }  # fmt: skip


def test_what_comes_during_the_renaming_is_copied_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_text("before\n")
    rename = Path.replace

    def write_and_rename(source: Path, target: Path) -> Path:
        with log.open("a") as writer:
            writer.write("during\n")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", write_and_rename)
    put_aside(log)
    kept = contents(tmp_path)
    assert kept["a.log"] == ""
    assert kept["a.log.1"].startswith("before\nduring\n")


def keeper(folder: Path, bytes_max: int) -> tuple[LogKeeper, list[str]]:
    said: list[str] = []
    return LogKeeper(folder, bytes_max, said.append), said


def test_every_ten_seconds_what_is_too_large_is_put_aside(tmp_path: Path) -> None:
    keeping, said = keeper(tmp_path, 10)
    (tmp_path / "small.log").write_text("x" * 10)
    (tmp_path / "large.log").write_text("x" * 11)
    (tmp_path / "large.txt").write_text("x" * 11)
    keeping.look(5)
    assert sorted(contents(tmp_path)) == ["large.log", "large.log.1", "large.txt", "small.log"]
    (tmp_path / "small.log").write_text("x" * 11)
    assert keeping.next_at_ns() == 5 + CHECK_EVERY_NS
    keeping.look(5 + CHECK_EVERY_NS - 1)
    assert contents(tmp_path)["small.log"] == "x" * 11
    keeping.look(5 + CHECK_EVERY_NS)
    assert contents(tmp_path)["small.log.1"] == "x" * 11
    assert said == []


def test_with_a_limit_of_none_nothing_is_looked_at(tmp_path: Path) -> None:
    keeping, _ = keeper(tmp_path, 0)
    (tmp_path / "a.log").write_text("x")
    keeping.look(5)
    assert keeping.next_at_ns() is None
    assert contents(tmp_path) == {"a.log": "x"}


def test_no_folder_yet_is_no_trouble(tmp_path: Path) -> None:
    keeping, said = keeper(tmp_path / "logs", 1)
    keeping.look(5)
    assert said == []


def test_a_full_disk_is_told_of_once_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: FileIO, target: FileIO, room: int) -> int:
        target.write(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    keeping, said = keeper(tmp_path, 1)
    (tmp_path / "a.log").write_text("new")
    (tmp_path / "a.log.1").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(rotation, "_copy", fail)
        for number in range(3):
            keeping.look(number * CHECK_EVERY_NS)
    assert contents(tmp_path) == {"a.log": "new", "a.log.1": "old"}
    [text] = said
    assert "a.log" in text and "No space left" in text
    keeping.look(3 * CHECK_EVERY_NS)
    assert contents(tmp_path) == {"a.log": "", "a.log.1": "new", "a.log.2": "old"}
