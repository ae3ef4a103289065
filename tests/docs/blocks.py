"""The fenced blocks of the pages that people read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.base.children import ROOT

SHELLS = {"sh", "bash", "console", "shell"}
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One of them.

    Attributes:
        page: from the root of the repository.
        line: of its fence, from 1.
        language: as the fence names it.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where to look when it is wrong."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, everything in docs/, and the README of every client and of the trained adapters."""
    others = [*ROOT.glob("clients/*/README.md"), ROOT / "cli/adapters/trained/README.md"]
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(others)]


def blocks(page: Path, languages: set[str]) -> Iterator[Block]:
    """Those of a page in one of these languages, from top to bottom."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found[2] in languages:
            line = text.count("\n", 0, found.start()) + 1
            name = str(page.relative_to(ROOT))
            indent = len(found[1])
            lines = [each[indent:] for each in found[3].splitlines(keepends=True)]
            yield Block(name, line, found[2], "".join(lines))


def all_blocks(languages: set[str]) -> list[Block]:
    """Those of all pages."""
    return [block for page in pages() for block in blocks(page, languages)]
