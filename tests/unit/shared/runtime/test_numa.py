"""Processes and threads are bound near a device where that is known, and otherwise left alone."""

import os
import threading
from pathlib import Path

import pytest

from shared.runtime import numa
from shared.runtime.numa import bind_process, bind_thread, cpus_near, cpus_of_nodes, parse_cpus


def machine(sysfs: Path) -> Path:
    """Two nodes with CPUs, one with memory alone, and devices on them."""
    nodes = sysfs / "devices/system/node"
    for number, cpus in ((0, "0-3,8-11\n"), (1, "4-7,12-15\n"), (10, "\n")):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}/cpulist").write_text(cpus)
    (nodes / "online").write_text("0-1,10\n")
    for bus_id, node in (("0000:3b:00.0", "1"), ("0001:00:00.0", "-1"), ("0000:00:01.0", "x")):
        device = sysfs / "bus/pci/devices" / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(node + "\n")
    return sysfs


LOW, HIGH = frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15})


def test_nodes_are_those_with_cpus(tmp_path: Path) -> None:
    assert cpus_of_nodes(machine(tmp_path)) == [LOW, HIGH]
    assert cpus_of_nodes(tmp_path / "none") == []


@pytest.mark.parametrize("bus_id", ["0000:3b:00.0", "00000000:3B:00.0", " 0:3b:00.0\n"])
def test_cpus_near_a_device_are_those_of_its_node(bus_id: str, tmp_path: Path) -> None:
    assert cpus_near(bus_id, machine(tmp_path)) == HIGH


@pytest.mark.parametrize("bus_id", ["0001:00:00.0", "0000:00:01.0", "0000:ff:00.0", "", "x", "::"])
def test_of_a_device_that_is_nowhere_nothing_is_known(bus_id: str, tmp_path: Path) -> None:
    assert cpus_near(bus_id, machine(tmp_path)) == frozenset()


@pytest.mark.parametrize("text", ["a", "-", "1;2"])
def test_a_list_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        print(parse_cpus(text))


@pytest.mark.parametrize(
    ("allowed", "bound"),
    [
        (LOW | HIGH, HIGH),
        (LOW | frozenset({4, 5, 6, 7}), frozenset({4, 5, 6, 7})),
        (LOW | frozenset({4, 5, 6}), frozenset()),  # too few
        (HIGH, frozenset()),  # as it is
        (frozenset({4, 5, 6, 7}), frozenset()),
        (LOW, frozenset()),  # bound elsewhere by the user
    ],
)
def test_a_process_is_bound_with_all_its_threads_within_what_it_may_use(
    allowed: frozenset[int], bound: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, frozenset[int]] = {}

    def bind(thread: int, cpus: frozenset[int]) -> None:
        asked[thread] = cpus
        if thread == threading.get_native_id():
            raise ProcessLookupError

    may_end, ids = threading.Event(), []

    def stay() -> None:
        ids.append(threading.get_native_id())
        has_begun.set()
        may_end.wait(10)

    has_begun = threading.Event()
    beside = threading.Thread(target=stay)
    beside.start()
    assert has_begun.wait(10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", bind)
    assert bind_process(HIGH) == bound
    may_end.set()
    beside.join()
    assert set(asked.values()) == ({bound} if bound else set())
    assert not bound or {threading.get_native_id(), *ids} <= asked.keys()


def test_a_thread_is_bound_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(LOW))
    monkeypatch.setattr(os, "sched_setaffinity", lambda *bound: asked.append(bound))
    bind_thread(HIGH)
    bind_thread(HIGH | {0, 1})
    assert asked == [(0, {0, 1})]


def test_here_nothing_breaks() -> None:
    allowed = os.sched_getaffinity(0)
    assert bind_process(allowed) == frozenset()
    bind_thread(allowed)
    assert os.sched_getaffinity(0) == allowed
    assert numa.SYSFS.is_dir()
