"""A worker is bound near its GPU if the driver says where that is."""

import ctypes
from typing import Any

import pytest
import torch

from services.worker import load
from services.worker.config import WorkerConfig
from services.worker.device import near_gpu
from services.worker.device.near_gpu import bind_near_gpu
from shared.runtime.config import load_config


class Driver:
    """What is used of libcuda."""

    def __init__(self, bus_id: bytes, init: int = 0, found: int = 0) -> None:
        self._bus_id, self._init, self._found = bus_id, init, found

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self._init

    def cuDeviceGetPCIBusId(self, text: Any, size: int, device: int) -> int:  # noqa: N802
        assert (size, device) == (32, 0)
        text.value = self._bus_id
        return self._found


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    asked: list[frozenset[int]] = []

    def bind(cpus: frozenset[int]) -> frozenset[int]:
        asked.append(cpus)
        return cpus

    near = {"0000:3b:00.0": frozenset({4, 5})}
    monkeypatch.setattr(near_gpu, "bind_process", bind)
    monkeypatch.setattr(near_gpu, "cpus_near", lambda bus_id: near.get(bus_id, frozenset()))
    return asked


def drive(monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
    def load(name: str) -> object:
        assert name == "libcuda.so.1"
        if isinstance(driver, OSError):
            raise driver
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    bind_near_gpu()


def test_it_is_the_node_of_the_first_gpu(
    bound: list[frozenset[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(monkeypatch, Driver(b"0000:3b:00.0"))
    assert bound == [{4, 5}]


@pytest.mark.parametrize(
    "driver",
    [
        OSError("libcuda.so.1: cannot open shared object file"),
        object(),
        Driver(b"0000:3b:00.0", init=100),
        Driver(b"0000:3b:00.0", found=101),
        Driver(b""),
    ],
)
def test_without_an_answer_nothing_is_bound(
    driver: object, bound: list[frozenset[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(monkeypatch, driver)
    assert not bound


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_worker_on_a_gpu_is_bound_when_it_takes_the_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[str] = []
    monkeypatch.setattr(load, "_device", lambda _: device)
    monkeypatch.setattr(load, "bind_near_gpu", lambda: bound.append(device))
    settings = {"SYMPHONY_NUM_THREADS": str(torch.get_num_threads())}
    assert load._prepare_device(load_config(WorkerConfig, settings)) == device
    assert bound == ["cuda"] * (device == "cuda")
