"""The client is a distribution of its own, that needs nothing of the server."""

import ast
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from cli.base.children import ROOT

CLIENT = ROOT / "clients" / "python"
SCRIPT = ROOT / "clients" / "symphony.js"
SOURCE = CLIENT / "src" / "symphony_client"
OURS = {"cli", "kernels", "loadtest", "services", "shared", "tests"}


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def imported(path: Path) -> set[str]:
    """Packages that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_its_version_is_the_projects() -> None:
    assert project(CLIENT)["project"]["version"] == project(ROOT)["project"]["version"]


def test_it_imports_nothing_of_the_server() -> None:
    for path in CLIENT.rglob("*.py"):
        assert not imported(path) & OURS, path


def test_it_needs_httpx_alone() -> None:
    known = {*sys.stdlib_module_names, "symphony_client", "httpx", "nats"}
    for path in SOURCE.rglob("*.py"):
        if path.parent.name != "integrations":
            assert imported(path) <= known, path
    assert project(CLIENT)["project"]["dependencies"] == ["httpx>=0.27"]


def test_the_servers_wheel_is_without_it() -> None:
    found = project(ROOT)["tool"]["setuptools"]["packages"]["find"]

    def is_shipped(package: str) -> bool:
        is_in, is_out = (
            any(fnmatch(package, pattern) for pattern in found[kind])
            for kind in ("include", "exclude")
        )
        return is_in and not is_out

    assert is_shipped("services.tracker") and is_shipped("cli.start")
    assert is_shipped("clients"), "from which the page's client is served"
    assert not is_shipped("clients.python.src.symphony_client")


def test_importing_it_imports_no_framework() -> None:
    code = "import sys, symphony_client; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"agents", "langchain_core", "pydantic_ai", "autogen_core", "ag2", "nats"}


@pytest.mark.parametrize("extra", ["nats", "openai-agents", "examples"])
def test_extras_are_there(extra: str) -> None:
    assert project(CLIENT)["project"]["optional-dependencies"][extra]


@pytest.mark.parametrize("readme", [CLIENT / "README.md", SCRIPT / "README.md"])
def test_the_readme_of_a_package_links_to_no_file_outside_it(readme: Path) -> None:
    """An index shows it alone, where a path leads nowhere."""
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", readme.read_text())
