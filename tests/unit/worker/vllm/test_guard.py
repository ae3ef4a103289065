"""Nothing that vLLM started outlives a killed worker."""

import signal
import subprocess
import sys

import pytest

WORKER = """
import os, subprocess, time
from services.worker.vllm.guard import guard_group
guard = guard_group()
if {is_forked}:
    if not os.fork():
        time.sleep(1000)
else:
    subprocess.Popen(["sleep", "1000"])
print("started", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("is_forked", [False, True])
def test_processes_of_a_killed_worker_end(is_forked: bool) -> None:
    command = [sys.executable, "-c", WORKER.format(is_forked=is_forked)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert worker.stdout is not None and worker.stdout.readline() == b"started\n"
    worker.send_signal(signal.SIGKILL)
    # All of its processes hold the pipe: it ends when they do.
    assert worker.communicate(timeout=60)[0] == b""
