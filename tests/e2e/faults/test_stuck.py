"""Processes that live and do nothing any more are replaced by the supervisor."""

import signal
from collections.abc import Iterator

import httpx
import pytest

from loadtest.deployment import wait_until
from shared.runtime.settings import as_variables
from tests.cluster import Cluster

IMPATIENT = as_variables({"status_interval_s": "0.5", "stuck_after_s": "6"})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("stuck") / "data"
    with Cluster(place, "--emulate", "zero", settings=IMPATIENT) as running:
        yield running


def serve_a_turn(cluster: Cluster) -> int:
    body = {"model": "zero", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=60)
    return answer.status_code


@pytest.mark.parametrize("name", ["worker-0", "tracker", "redis", "nats", "frontend"])
def test_a_child_that_stands_still_is_replaced_and_no_other(cluster: Cluster, name: str) -> None:
    before = cluster.pids()
    old = cluster.kill(name, signal.SIGSTOP)
    if name not in ("nats", "frontend"):  # `status` itself goes through NATS
        wait_until(
            lambda: (
                {"name": name, "pid": old, "state": "silent", "stage": ""}
                in cluster.look()["services"]
            ),
            "status tells of it",
        )
    cluster.wait_restarted(name, old)
    cluster.wait_healthy()
    assert serve_a_turn(cluster) == 200
    others = {child: pid for child, pid in before.items() if child != name}
    assert {child: pid for child, pid in cluster.pids().items() if child != name} == others
    said = (cluster.logs / "up.log").read_text()
    assert f"{name} does not answer for 6 s; killing it" in said
    assert f"{name} was killed by SIGKILL; restarting it" in said
