"""A process that waits to become a worker, and becomes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.private import PRIVATE_UMASK

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


def test_what_it_writes_is_its_owner_s_alone(tmp_path: Path) -> None:
    """It may have begun before anybody set that."""
    (tmp_path / "a_worker.py").write_text("import os; print(oct(os.umask(0)))")
    log = tmp_path / "worker.log"
    order = json.dumps({"environment": {}, "log_path": str(log)})
    become = (
        "import os, sys; from services.worker.standby import __main__ as standby; os.umask(0); "
        "standby.WORKER = 'a_worker'; standby.become_worker(sys.argv[1])"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", become, order], env={**os.environ, "PYTHONPATH": path}, timeout=300,
        check=True,
    )  # fmt: skip
    assert log.read_text() == f"{oct(PRIVATE_UMASK)}\n"
