"""Modules stand on one another in one direction: what imports something is not imported by it, not
even for its types. In `loadtest/world` it may be for its types: a process knows its world.
"""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("cli", "kernels", "loadtest", "services", "shared")
TYPES_MAY_CIRCLE = "loadtest.world."


def modules(root: Path) -> dict[str, Path]:
    """Files by module name."""
    files = (file for place in PLACES for file in (root / place).rglob("*.py"))
    names = {".".join(file.relative_to(root).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in names.items()}


def imported(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports, under whatever condition."""
    yield from _imported(ast.walk(ast.parse(file.read_text())), known)


def imported_at_run_time(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The same without what stands under `if TYPE_CHECKING`."""
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if not _is_for_types(node)]
    yield from _imported(ast.walk(tree), known)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported(nodes: Iterable[ast.AST], known: dict[str, Path]) -> Iterator[str]:
    for node in nodes:
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
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        reader = imported_at_run_time if name.startswith(TYPES_MAY_CIRCLE) else imported
        graph[name] = {*reader(file, known)} - {name}
    return list(TopologicalSorter(graph).static_order())


def test_no_module_imports_what_imports_it() -> None:
    assert len(order(ROOT)) > 200


def test_a_circle_is_found(tmp_path: Path) -> None:
    for place in PLACES:
        (tmp_path / place).mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("")
    (tmp_path / "shared" / "a.py").write_text("import shared.b\n")
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shared.a import A\n"
    (tmp_path / "shared" / "b.py").write_text(hidden)
    with pytest.raises(CycleError, match=r"shared\.a"):
        order(tmp_path)


def test_only_the_world_may_circle_by_types(tmp_path: Path) -> None:
    place = tmp_path / "loadtest" / "world"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "a.py").write_text("import loadtest.world.b\n")
    hidden = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from loadtest.world import a\n"
    )
    (place / "b.py").write_text(hidden)
    names = order(tmp_path)
    assert names.index("loadtest.world.b") < names.index("loadtest.world.a")
    (place / "b.py").write_text("def late() -> None:\n    from loadtest.world import a\n")
    with pytest.raises(CycleError, match=r"loadtest\.world\.a"):
        order(tmp_path)
