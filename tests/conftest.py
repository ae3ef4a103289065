"""Servers for tests: real NATS and Redis, fresh, on free ports."""

import gc
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from cli.base.children import free_port, stop_child
from loadtest.servers import start_nats, start_redis, wait_for_port

# A machine that stalls is no fault of a test: how long drawing takes is not held against it.
settings.register_profile("symphony", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("symphony")

# What gets a Ctrl-C here is to heed it, also where a script runs the tests in its background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# All files of these folders use one deployment: one process runs them, else each would start it.
SHARING = ("tests/e2e/api/", "tests/frameworks/")
# Files here take long, above all in a new clone, where kernels are compiled: at the end of a run
# the other processes would wait for them.
LONG = "tests/unit/worker/device/"

gc.disable()  # until all is collected: modules and tests are no garbage, and hundreds of thousands


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """Nor need they be looked through again and again while tests run."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # where xdist is
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes files, and the folders in `SHARING` whole."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope

    def unit_of(nodeid: str) -> str:
        file: str = file_of(nodeid)
        return next((folder for folder in SHARING if file.startswith(folder)), file)

    scheduling._split_scope = unit_of
    return scheduling


def pytest_unconfigure() -> None:
    """Libraries complain of what is left at the end."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs a GPU is skipped without one."""
    if item.get_closest_marker("gpu") is not None:
        import torch  # other tests need not wait for it

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@dataclass
class Server:
    """A real server a test may stop (`kill`) and start again (`start`) on the same port."""

    kind: str
    port: int
    directory: Path

    def __post_init__(self) -> None:
        self.start()

    @property
    def url(self) -> str:
        if self.kind == "nats":
            return f"nats://127.0.0.1:{self.port}"
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        begin = start_nats if self.kind == "nats" else start_redis
        self.child = begin(self.port, self.directory)
        wait_for_port(self.child, self.port, self.kind)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def close(self) -> None:
        stop_child(self.child)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[Server]:
    server = Server("nats", free_port(), tmp_path / "nats")
    yield server
    server.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    server = Server("redis", free_port(), tmp_path / "redis")
    yield server
    server.close()
