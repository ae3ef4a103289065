"""The maps of the code in the docs lead somewhere: folders exist, and the names to search for are
found in them.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.base.children import ROOT

# Columns of what a row is about, of folders, and of names, in the pages that have maps.
MAPS = {"contributing.md": (0, 1, 2), "turn.md": (0, 2, 3)}
PAGES = ("architecture.md", *MAPS)
PATH = re.compile(r"`((?:cli|clients|docs|kernels|loadtest|services|shared|tests)/[\w./*-]*)`")
NAME = re.compile(r"`(\w+)`")


class Row(NamedTuple):
    """A row of a map: below these paths these names are found."""

    place: str
    paths: list[str]
    names: list[str]


def rows() -> list[Row]:
    """Every row of every map that names folders and what to search for there."""
    found = []
    for page, (what, where, start) in MAPS.items():
        for line in (ROOT / "docs" / page).read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("|") and len(cells) > start:
                paths, names = PATH.findall(cells[where]), NAME.findall(cells[start])
                if paths and names:
                    found.append(Row(f"docs/{page}: {cells[what]}", paths, names))
    return found


@cache
def code(path: Path) -> str:
    """The Python sources below a path."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return "\n".join(file.read_text() for file in files)


def test_the_maps_have_rows() -> None:
    assert len(rows()) >= 35


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.place)
def test_names_are_found_where_the_map_says(row: Row) -> None:
    text = "\n".join(code(ROOT / path) for path in row.paths)
    missing = [name for name in row.names if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"{row.place}: {missing} not in {row.paths}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_on_a_page_exist(page: str) -> None:
    for path in PATH.findall((ROOT / "docs" / page).read_text()):
        assert list(ROOT.glob(path)), f"docs/{page}: no {path}"
