"""The client's examples, each in a process of its own as a user runs it."""

import os
import re
import subprocess
import sys

import pytest

from cli.base.children import ROOT
from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import needs

CLIENT = ROOT / "clients" / "python"
EXAMPLES = CLIENT / "examples"
NEEDED = {
    "openai_agents": "agents",
    "langchain": "langchain",
    "langgraph": "langgraph",
    "pydantic_ai": "pydantic_ai",
    "llama_index": "llama_index.llms.openai_like",
    "crewai": "crewai",
    "autogen": "autogen_ext",
    "ag2": "ag2",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(module)) for name, module in NEEDED.items()]
)
def test_an_example_announces_the_turn_after_its_tool(cluster: Cluster, name: str) -> None:
    own = {"SYMPHONY_BASE_URL": cluster.url, "MODEL": DEMO_MODEL_ID, "MAX_TOKENS": "900"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"with_{name}.py"],
        env={**os.environ, **own, "PYTHONPATH": str(CLIENT / "src")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^tool: .* the agent's next turn is placed$", done.stdout, re.MULTILINE)
    assert re.search(r"^session: 2 turns, \d+ tokens$", done.stdout, re.MULTILINE)
    assert re.search(r"^hints: [12] sent, [01] not needed, 0 failed$", done.stdout, re.MULTILINE)


def test_the_readme_lists_every_example() -> None:
    text = (CLIENT / "README.md").read_text()
    listed = re.findall(r"`python clients/python/examples/with_(\w+)\.py`", text)
    files = {path.stem.removeprefix("with_") for path in EXAMPLES.glob("with_*.py")}
    assert sorted(listed) == sorted(files) == sorted(NEEDED)
