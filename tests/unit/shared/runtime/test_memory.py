"""What memory there is, of the host and of the groups around a process."""

from pathlib import Path

import pytest

from shared.runtime.memory import Memory, measure_memory

MIB = 1024**2
HOST = "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n"
NONE_1 = "9223372036854771712"  # what version 1 says without a limit


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("", {}, (1024, 512), id="no groups"),
        pytest.param(
            "0::/a/b\n",
            {"a/b/memory.max": "max", "a/b/memory.current": str(99 * MIB), "a/memory.max": "max"},
            (1024, 512),
            id="no limit",
        ),
        pytest.param(
            "0::/\n",
            {
                "memory.max": str(256 * MIB), "memory.current": str(100 * MIB),
                "memory.stat": f"anon 9\nactive_file {10 * MIB}\ninactive_file {20 * MIB}\n",
            },
            (256, 186),
            id="a container of version 2: pages of files can be had",
        ),
        pytest.param(
            "0::/pods/pod/one\n",
            {
                "pods/pod/one/memory.max": "max", "pods/pod/one/memory.current": "0",
                "pods/pod/memory.max": str(300 * MIB), "pods/pod/memory.current": str(40 * MIB),
                "pods/memory.max": str(400 * MIB), "pods/memory.current": str(350 * MIB),
            },
            (300, 50),
            id="the least of each of the groups around it",
        ),
        pytest.param(
            "9:cpu:/x\n8:memory:/docker/abc\n0::/\n",
            {
                "memory/memory.limit_in_bytes": str(128 * MIB),
                "memory/memory.usage_in_bytes": str(100 * MIB),
                "memory/memory.stat": f"active_file 0\ntotal_active_file {2 * MIB}\n"
                f"total_inactive_file {3 * MIB}\n",
            },
            (128, 28 + 5),
            id="a container of version 1, whose path is that of the host",
        ),
        pytest.param(
            "8:cpu,memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": NONE_1, "memory/x/memory.usage_in_bytes": "5",
                "memory/memory.limit_in_bytes": NONE_1, "memory/memory.usage_in_bytes": "5",
            },
            (1024, 512),
            id="version 1 without a limit",
        ),
        pytest.param(
            "0::/\n",
            {"memory.max": str(64 * MIB), "memory.current": str(65 * MIB)},
            (64, 0),
            id="none is left",
        ),
        pytest.param("nonsense\n0::/\n", {"memory.max": "?"}, (1024, 512), id="nonsense"),
    ],
)  # fmt: skip
def test_memory_is_what_the_host_and_all_groups_leave(
    groups: str, files: dict[str, str], expected: tuple[int, int], tmp_path: Path
) -> None:
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (written | {"proc/meminfo": HOST, "proc/self/cgroup": groups}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    memory = measure_memory(tmp_path)
    total, available = expected
    assert memory == Memory(total * MIB, available * MIB)


def test_a_machine_that_says_nothing_has_nothing(tmp_path: Path) -> None:
    assert measure_memory(tmp_path) == Memory(0, 0)


def test_this_machine_has_some() -> None:
    memory = measure_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
