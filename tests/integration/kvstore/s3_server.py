"""A server that speaks S3, on this machine, for as long as it is needed: what tests and benchmarks
put their objects in.
"""

import importlib.util
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.base.children import free_port

START_S = 60.0
POLL_S = 0.05
STOP_S = 5.0
BUCKET = "kv-cache"


class NoServer(Exception):
    """It cannot be started here, and why."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """Attributes:
    url: of a bucket that is there.
    environment: by which clients find the server.
    """

    url: str
    environment: Mapping[str, str]
    process: "subprocess.Popen[bytes]"


@contextmanager
def s3_server(log_path: Path) -> Iterator[S3Server]:
    """Raises:
    NoServer: its package is not installed, or it did not start.
    """
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise NoServer("moto is not installed: pip install 'moto[server]'")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with (
        log_path.open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _make_bucket(address, process)
            environment = {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "anybody",
                "AWS_SECRET_ACCESS_KEY": "anything",
                "AWS_REGION": "us-east-1",
            }
            yield S3Server(f"s3://{BUCKET}/of-the-house", environment, process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _make_bucket(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    request = urllib.request.Request(f"{address}/{BUCKET}", method="PUT", data=b"")
    while True:
        try:
            urllib.request.urlopen(request, timeout=START_S).close()
            return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"the S3 server does not answer: {error}") from None
            time.sleep(POLL_S)
