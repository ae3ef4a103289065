"""Folders where anybody can make some: looked at before use, removed without following links."""

import os
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.private import (
    check_private,
    make_new,
    make_private,
    remove_private,
    remove_unheld,
    unheld,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "arena"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("x")
    return folder


@pytest.fixture
def _somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr("shared.private.os.geteuid", lambda: uid + 1)


def test_a_folder_of_ours_is_fine_and_so_is_none(folder: Path, tmp_path: Path) -> None:
    check_private(folder, "X")
    check_private(tmp_path / "none", "X")


def test_what_others_could_enter_is_refused(folder: Path) -> None:
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match=r"^X='.*/arena': others may enter it \(mode 0750\)"):
        check_private(folder, "X")


def test_links_and_files_are_refused(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="symbolic link"):
        check_private(link, "X")
    with pytest.raises(ConfigError, match="no folder"):
        check_private(folder / "file", "X")
    with pytest.raises(ConfigError, match="Not a directory"):
        check_private(folder / "file" / "below", "X")


@pytest.mark.usefixtures("_somebody_else")
def test_somebody_else_s_is_refused_and_not_removed(folder: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to user"):
        check_private(folder, "X")
    remove_private(folder)
    assert folder.exists()


def test_a_name_that_another_user_took_is_avoided(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.geteuid()
    assert unheld(folder) == folder, "it is ours"
    assert unheld(folder.with_name("none")) == folder.with_name("none")
    link = folder.with_name("link")
    link.symlink_to("/etc")
    monkeypatch.setattr("shared.private.os.geteuid", lambda: uid + 1)
    for held in (folder, link):
        other = unheld(held)
        assert other.name.startswith(f"{held.name}-") and len(other.name) > len(held.name) + 16
        assert other == unheld(held), "the same in all of a process"
    monkeypatch.setattr("shared.private.os.geteuid", lambda: uid)
    make_private(other, "X")
    (link.parent / f"{link.name}-of-another").mkdir()
    remove_unheld(link)
    assert {path.name for path in folder.parent.iterdir()} == {"arena", "link-of-another"}


def test_a_folder_is_removed_and_what_links_lead_to_stays(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("precious")
    (folder / "link").symlink_to(kept)
    link = tmp_path / "link"
    link.symlink_to(kept)
    for path in (folder, link, tmp_path / "none"):
        remove_private(path)
        assert not path.exists() and not path.is_symlink()
    assert (kept / "file").read_text() == "precious"


def test_a_new_file_takes_the_place_of_a_link(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "new").symlink_to(victim)
    os.close(make_new(folder / "new"))
    assert victim.read_text() == "precious"
    assert (folder / "new").stat().st_mode & 0o777 == 0o600
