"""A deployment on file systems of its own, which are full for a while: the data folder, shared
memory and the folder for temporary files.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.start.options import DeploymentOptions
from loadtest.deployment import wait_until
from tests.cluster import Cluster

DATA_MIB, SHARED_MIB, TEMPORARY_MIB = 200, 200, 16
FILL_BYTES = 4096


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Small file systems for the three."""
    data, temporary = tmp_path / "data", tmp_path / "temporary"
    shared = DeploymentOptions(data_dir=data).hosts[0].arena_dir
    places = {data: DATA_MIB, shared: SHARED_MIB, temporary: TEMPORARY_MIB}
    mounted: list[Path] = []
    try:
        for place, mib in places.items():
            place.mkdir(mode=0o700)
            command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(place)]
            done = subprocess.run(command, check=False, capture_output=True)
            if done.returncode:
                place.rmdir()
                pytest.skip("only root can mount a file system")
            mounted.append(place)
        yield mounted
    finally:
        for place in mounted:
            subprocess.run(["umount", "-l", place], check=True)
            place.rmdir()


def fill(place: Path) -> None:
    """Until it takes no more."""
    with (place / "fill").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(FILL_BYTES))
        except OSError:
            pass
    assert not os.statvfs(place).f_bavail


def turn(cluster: Cluster, name: str) -> None:
    """A stream comes to its end."""
    with cluster.client() as client:
        stream = client.chat.completions.create(
            model="zero", stream=True, max_tokens=50, extra_body={"session_id": name},
            messages=[{"role": "user", "content": f"Hello from {name} " * 20}],
        )  # fmt: skip
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"


def is_remembered(cluster: Cluster) -> bool:
    with cluster.client() as client:
        made = client.responses.create(model="zero", input="Hello", max_output_tokens=16)
        return bool(made.model_dump()["store"])


@pytest.mark.slow
def test_turns_go_on_while_disks_are_full_and_nothing_is_stuck_afterwards(
    disks: list[Path],
) -> None:
    env = {"TMPDIR": str(disks[2]), "SYMPHONY_DISK_BYTES_MAX": str(1 << 25)}
    with Cluster(disks[0], "--emulate", "zero", settings=env) as cluster:
        turn(cluster, "before")
        assert is_remembered(cluster)
        for place in disks:
            fill(place)
        turn(cluster, "full")
        assert not is_remembered(cluster), "and its answer says so"
        for name in ("worker-0", "scheduler", "tracker", "nats"):
            pid = cluster.kill(name)
            wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{name} is gone")  # type: ignore[misc]
            turn(cluster, f"without-{name}")
        for place in disks:
            (place / "fill").unlink()
        wait_until(lambda: is_remembered(cluster), "Redis takes writes again")
        turn(cluster, "after")
        wait_until(lambda: cluster.look()["state"] == "ready", "everything is there again")


@pytest.mark.slow
def test_a_damaged_file_of_redis_costs_what_was_in_it(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--emulate", "zero") as cluster:
        assert is_remembered(cluster)
    (tmp_path / "redis" / "appendonly.aof").write_bytes(b"*3\r\n$3\r\nSEX")
    with Cluster(tmp_path, "--emulate", "zero") as cluster:
        assert is_remembered(cluster)
        pid = cluster.kill("redis")
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it is gone")
        wait_until(lambda: is_remembered(cluster), "Redis is back")
