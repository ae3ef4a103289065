"""The examples in docstrings do what they say."""

import doctest
import importlib

import pytest

from cli.base.children import ROOT

CLIENT = ROOT / "clients" / "python" / "src"
FOLDERS = (
    (ROOT, "cli"), (ROOT, "kernels"), (ROOT, "services"), (ROOT, "shared"),
    (CLIENT, "symphony_client"),
)  # fmt: skip


def modules_with_examples() -> list[str]:
    """Modules whose text holds a prompt; importing all others would only take time."""
    return [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for root, folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if ">>> " in path.read_text()
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted, "the prompt is not an example"
    assert not results.failed
