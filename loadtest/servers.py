"""NATS and Redis of tests and benchmarks: private ones, on free ports of loopback."""

import subprocess
import time
from pathlib import Path

from cli.base.children import (
    NATS_MAX_PAYLOAD_BYTES,
    find_nats_server,
    find_redis_server,
    is_listening,
    start_child,
)
from loadtest.starting import Waiting
from shared.errors import PeerUnavailable


def start_nats(
    port: int, directory: Path, *, log_path: Path | None = None
) -> subprocess.Popen[bytes]:
    """A private nats-server (JetStream on) that listens on loopback `port`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{port}\nmax_payload: {NATS_MAX_PAYLOAD_BYTES}\n"
        f'jetstream {{ store_dir: "{directory / "jetstream"}" }}\n'
    )
    return start_child(
        [find_nats_server(), "-c", str(config)], log_path=log_path or directory / "nats.log"
    )


def start_redis(
    port: int, directory: Path, *, append_only: bool = True, log_path: Path | None = None
) -> subprocess.Popen[bytes]:
    """A private redis-server that listens on loopback `port` and keeps its data in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    return start_child(
        [
            find_redis_server(),
            "--bind", "127.0.0.1",
            "--port", str(port),
            "--dir", str(directory),
            "--appendonly", "yes" if append_only else "no",
            "--save", "",
            "--daemonize", "no",
        ],
        log_path=log_path or directory / "redis.log",
    )  # fmt: skip


def wait_for_port(child: subprocess.Popen[bytes], port: int, name: str) -> None:
    """Block until `child` accepts connections on loopback `port`.

    Raises:
        PeerUnavailable: it exited or did not listen in time.
    """
    waiting = Waiting(f"{name} listens on port {port}")
    while not is_listening(port):
        if (code := child.poll()) is not None:
            raise PeerUnavailable(f"{name} ended at once with status {code}")
        waiting.check()
        time.sleep(0.02)
