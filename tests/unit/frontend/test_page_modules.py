"""The chat page's modules that need no browser, in Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_its_own_tests_pass() -> None:
    assert NODE is not None
    run = subprocess.run(
        [NODE, "--test", str(Path(__file__).parent / "page_modules.test.mjs")],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
