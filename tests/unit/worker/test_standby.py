"""A process that waits to become a worker, and becomes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STANDBY = [sys.executable, "-m", "services.worker.standby"]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_it_takes_settings_and_log_of_the_worker_that_it_becomes(
    tmp_path: Path, is_ordered: bool
) -> None:
    log = tmp_path / "worker.log"
    environment = {**os.environ, "SYMPHONY_MAX_MODEL_LEN": "wrong"}  # which a worker refuses
    order = json.dumps({"environment": environment, "log_path": str(log)})
    done = subprocess.run(
        STANDBY, input=order if is_ordered else "", capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.stdout == ""
    if not is_ordered:
        assert done.returncode == 0 and not log.exists()
        return
    assert done.returncode != 0
    assert "SYMPHONY_MAX_MODEL_LEN='wrong'" in log.read_text()
