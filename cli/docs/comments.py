"""What comments in the sources of messages say of each field."""

import ast
import io
import re
import tokenize
from pathlib import Path

SKIPPED = re.compile(r"(noqa|type: ignore|fmt: )")


def comments_in(source: str) -> dict[str, dict[str, str]]:
    """Of each class of a module, by field: the comment behind it, or in lines of its own before it.

    >>> comments_in("class A:\\n    # first,\\n    # in ms\\n    a: int\\n    b: int  # second\\n")
    {'A': {'a': 'first, in ms', 'b': 'second'}}
    """
    behind: dict[int, str] = {}
    alone: dict[int, str] = {}
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not SKIPPED.match(text := token.string.lstrip("# ")):
            row, column = token.start
            (alone if not lines[row - 1][:column].strip() else behind)[row] = text
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {}
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    text = _comment_of(field, behind, alone)
                    found[node.name] |= {field.target.id: text} if text else {}
    return found


def comments_below(folder: Path) -> dict[str, dict[str, str]]:
    """Those of all modules of a folder."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.py")):
        found |= comments_in(path.read_text())
    return found


def _comment_of(field: ast.AnnAssign, behind: dict[int, str], alone: dict[int, str]) -> str:
    rows = range(field.lineno, (field.end_lineno or field.lineno) + 1)
    texts = [behind[row] for row in rows if row in behind]
    row = field.lineno - 1
    before: list[str] = []
    while row in alone:
        before.insert(0, alone[row])
        row -= 1
    return " ".join([*before, *texts])
