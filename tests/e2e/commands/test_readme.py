"""README typed from top to bottom on a machine that has nothing of ours: ten minutes."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from cli.base.children import ROOT
from tests.docs.blocks import SHELLS, blocks

TESTS = "./symphony test"  # they would run this one


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_block_runs_as_typed_in_the_order_it_stands(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SYMPHONY_")}
    environment = {**kept, "HOME": str(tmp_path), "PYTHONPATH": ""}
    folder, begun = tmp_path, time.monotonic()
    try:
        for block in blocks(ROOT / "README.md", SHELLS):
            if TESTS in block.text:
                continue
            text = block.text.replace("clone REPOSITORY", f"clone {ROOT}")
            text = text.replace("curl ", "curl --fail-with-body --silent --show-error ")
            done = subprocess.run(
                ["bash", "-e", "-c", text],
                stdin=subprocess.DEVNULL,  # where a chat is left by Ctrl-D
                cwd=folder, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            print(f"{time.monotonic() - begun:.0f} s: {block.place}\n{done.stdout[-300:]}")
            assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
            folder = tmp_path / "symphony"
    finally:
        subprocess.run(["./symphony", "down"], cwd=folder, env=environment, check=False)
