"""The maps of the code in the docs lead somewhere: folders exist, and the names to search for are
found in them.
"""

import re
from pathlib import Path

import pytest

from cli.start.plan import ROOT

MAP = "contributing.md"
PAGES = ("architecture.md", "contributing.md", "turn.md")
PATH = re.compile(r"`((?:cli|clients|docs|kernels|loadtest|services|shared|tests)/[\w./*-]*)`")
NAME = re.compile(r"`(\w+)`")
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, list[str], list[str]]]:
    """What to change, where to look, and the names to search for there."""
    text = (ROOT / "docs" / MAP).read_text()
    section = text.partition("## To change X, look in Y\n")[2].partition("\n## ")[0]
    found = [
        (what, PATH.findall(where), NAME.findall(names))
        for what, where, names in ROW.findall(section)
    ]
    return [row for row in found if row[1] and row[2]]


def code(paths: list[str]) -> str:
    """The Python sources below these."""
    files: list[Path] = []
    for path in map(ROOT.joinpath, paths):
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return "\n".join(file.read_text() for file in files)


def test_the_map_has_rows() -> None:
    assert len(rows()) >= 25


@pytest.mark.parametrize(("what", "paths", "names"), rows(), ids=[row[0] for row in rows()])
def test_names_are_found_where_the_map_says(what: str, paths: list[str], names: list[str]) -> None:
    text = code(paths)
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"docs/{MAP}, {what!r}: {missing} not in {paths}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_on_a_page_exist(page: str) -> None:
    for path in PATH.findall((ROOT / "docs" / page).read_text()):
        assert list(ROOT.glob(path)), f"docs/{page}: no {path}"
