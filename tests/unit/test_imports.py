"""Modules stand on one another in one direction: what imports something is not imported by it, not
even for its types. So do the folders that they are in.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("cli", "kernels", "loadtest", "services", "shared")
FILES_MAX = 20


def modules(root: Path) -> dict[str, Path]:
    """Files by module name."""
    files = (file for place in PLACES for file in files_in(root / place))
    names = {".".join(file.relative_to(root).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in names.items()}


def files_in(folder: Path) -> Iterator[Path]:
    """Sources in a folder and all below it."""
    return folder.rglob("*.py")


def imported(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports, under whatever condition."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in inner if name in known)
            if any(name not in known for name in inner):
                yield node.module


def order(root: Path) -> list[str]:
    """The modules, each behind those that it imports.

    Raises:
        CycleError: some import one another.
    """
    known = modules(root)
    graph = {name: {*imported(file, known)} - {name} for name, file in known.items()}
    return list(TopologicalSorter(graph).static_order())


def knots(root: Path) -> set[frozenset[str]]:
    """Sets of folders that import one another, directly or through others."""
    known = modules(root)
    folder = {name: file.relative_to(root).parent.as_posix() for name, file in known.items()}
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        graph.setdefault(folder[name], set()).update(folder[used] for used in imported(file, known))
    behind = {place: _reached(graph, place) for place in graph}
    found = (frozenset(b for b in behind[a] if a in behind[b]) for a in graph)
    return {knot for knot in found if len(knot) > 1}


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    pending = [start]
    while pending:
        new = graph[pending.pop()] - reached
        reached |= new
        pending += new
    return reached


def test_folders_form_no_knot() -> None:
    assert knots(ROOT) == set(), "these folders import one another"


def test_folders_are_small() -> None:
    """A reader looks through one at a glance."""
    counts = Counter(file.parent for place in (*PLACES, "tests") for file in files_in(ROOT / place))
    large = {folder: count for folder, count in counts.items() if count > FILES_MAX}
    assert not large


def test_a_knot_of_folders_is_found(tmp_path: Path) -> None:
    """Also one that no module is part of on both ways."""
    for name, text in {
        "cli/a/one.py": "import services.b.one\n",
        "cli/a/two.py": "",
        "services/b/one.py": "import shared.c\n",
        "shared/c.py": "import cli.a.two\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert knots(tmp_path) == {frozenset({"cli/a", "services/b", "shared"})}


def test_only_load_tests_import_load_tests() -> None:
    """The commands that they add to `cli` come through an entry point."""
    assert not [pair for pair in imports() if top(pair[1]) == "loadtest" != top(pair[0])]


def test_no_service_imports_another() -> None:
    """What two of them need is in `shared`."""
    pairs = [(name.split("."), used.split(".")) for name, used in imports()]
    between = [
        (name, used) for name, used in pairs if name[0] == used[0] == "services" and used[1:]
    ]
    assert between
    assert not [(name, used) for name, used in between if name[1] != used[1]]


@cache
def imports() -> list[tuple[str, str]]:
    """Every module of ours with each that it imports."""
    known = modules(ROOT)
    return [(name, used) for name, file in known.items() for used in imported(file, known)]


def top(module: str) -> str:
    """The top-level package of a module."""
    return module.partition(".")[0]


def test_no_module_imports_what_imports_it() -> None:
    assert len(order(ROOT)) > 200


@pytest.mark.parametrize(
    "hidden",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shared.a import A\n",
        "def late() -> None:\n    from shared import a\n",
    ],
    ids=["for its types", "late"],
)
def test_a_circle_is_found(hidden: str, tmp_path: Path) -> None:
    for place in PLACES:
        (tmp_path / place).mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("")
    (tmp_path / "shared" / "a.py").write_text("import shared.b\n")
    (tmp_path / "shared" / "b.py").write_text(hidden)
    with pytest.raises(CycleError, match=r"shared\.a"):
        order(tmp_path)
