"""Clients in JavaScript, where node is and the folder of what npm installed is named."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import City

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

SCRIPTS = Path(__file__).with_name("js")
NODE = shutil.which("node")
MODULES = Path(os.environ.get("TEST_NODE_MODULES", "node_modules")).absolute()
TIMEOUT_S = 120


def case(script: str, *packages: str) -> "ParameterSet":
    """A script, where its packages are: no cluster is started for one that cannot run."""
    missing = [name for name in packages if not (MODULES / name).is_dir()]
    why = f"{', '.join(missing)}: not in TEST_NODE_MODULES"
    return pytest.param(script, marks=pytest.mark.skipif(bool(missing), reason=why), id=script)


@pytest.mark.parametrize(
    "script",
    [
        case("openai", "openai"),
        case("anthropic", "@anthropic-ai/sdk"),
        case("ai-sdk", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible"),
    ],
)
@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_client(cluster: Cluster, script: str) -> None:
    done = subprocess.run(
        [str(NODE), str(SCRIPTS / f"{script}.mjs")],
        env={
            **os.environ,
            "NODE_PATH": str(MODULES),
            "BASE_URL": f"{cluster.url}/v1",
            "MODEL": DEMO_MODEL_ID,
            "SCHEMA": json.dumps(City.model_json_schema()),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
