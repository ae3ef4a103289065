"""The JavaScript client's own tests, which Node runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "clients" / "symphony.js"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_its_own_tests_pass() -> None:
    assert NODE is not None
    files = sorted(map(str, (CLIENT / "test").glob("*.test.js")))
    assert files
    run = subprocess.run(
        [NODE, "--test", *files],
        check=False,
        cwd=CLIENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
