"""Ends what vLLM started when the worker dies: its processes would hold the GPU's memory."""

import os
import subprocess

# Reads until the worker, which alone can write, is gone; then ends the process group.
SCRIPT = 'cat > /dev/null; kill -s KILL -- "-$0" 2> /dev/null'


def guard_group() -> "subprocess.Popen[bytes]":
    """From now on, every process of this one's group ends soon after this one, however that ends.

    This process becomes the leader of a group if it is not. Processes that are forked from it do
    not keep the guard waiting.

    Returns:
        The guard, which runs in a session of its own.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", SCRIPT, str(os.getpgrp())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None, "it was asked for"
    os.register_at_fork(after_in_child=guard.stdin.close)
    return guard
