"""Turns that outlive workers: one of many, or one that dies at each start; and a turn that comes
while there is none.

Workers are emulated, since they are killed a dozen times: one is back in a second, where one with a
model takes as long as torch takes to import. What they say is told by its place in the reply.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import httpx
import pytest

from cli.inspection.snapshot import look
from loadtest.deployment import wait_until
from tests.cluster import Cluster
from tests.e2e.replies import Reply, busy_workers, say

NUM_KILLS = 10
LONG = 7_000
NUM_COMPARED = 200
WORKERS = ("worker-0", "worker-1", "worker-2")
MODEL = "a100-llama3-8b"
WAIT = {"SYMPHONY_SCHEDULER_PLACEMENT_WAIT_S": "60"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data_dir = tmp_path_factory.mktemp("long-turns") / "data"
    with Cluster(data_dir, "--workers", "3", "--emulate", MODEL, settings=WAIT) as running:
        yield running


def health(cluster: Cluster) -> int:
    return httpx.get(f"{cluster.url}/health").status_code


def num_waiting(cluster: Cluster) -> int:
    seen = look(cluster.run)
    return seen.scheduler.num_turns_waiting if seen is not None and seen.scheduler else 0


def test_a_turn_that_comes_while_no_worker_is_there_waits_for_one(cluster: Cluster) -> None:
    cluster.process.send_signal(signal.SIGSTOP)  # it restarts nobody meanwhile
    try:
        for name in WORKERS:
            cluster.kill(name)
        wait_until(lambda: health(cluster) == 503, "the frontend knows that they are gone")
        with cluster.client() as client, ThreadPoolExecutor(1) as thread:
            assert client.models.list().data == []
            reply = thread.submit(say, client, model=MODEL)
            wait_until(lambda: reply.done() or num_waiting(cluster) == 1, "the turn waits")
            cluster.process.send_signal(signal.SIGCONT)
            assert reply.result().choices[0].finish_reason == "length"
    finally:
        cluster.process.send_signal(signal.SIGCONT)


def busy_worker(cluster: Cluster, killed: set[int]) -> str | None:
    """A child that has turns and is not one of those killed, of which news may be old."""
    pids = cluster.pids()
    return next((name for name in busy_workers(cluster) if pids.get(name, 0) not in killed), None)


def kill_at_work(cluster: Cluster, reply: Reply, killed: set[int]) -> None:
    """SIGKILL the worker of a reply that somebody reads, once it has made some tokens."""
    wait_until(lambda: busy_worker(cluster, killed | {0}) is not None, "a worker is at it")
    num_before = len(reply.tokens)
    wait_until(lambda: len(reply.tokens) >= num_before + 5, "it makes tokens")
    name = busy_worker(cluster, killed | {0})
    assert name is not None
    killed.add(cluster.kill(name))


def read_on(reply: Reply, enough: Event) -> None:
    """Read until told that it is enough."""
    while not enough.is_set():
        reply.read(len(reply.tokens) + 1)


def test_a_turn_outlives_more_workers_than_one_without_progress(cluster: Cluster) -> None:
    with cluster.client() as client, ThreadPoolExecutor(1) as thread:
        undisturbed = Reply(client, NUM_COMPARED, model=MODEL).read_to_end()
        reply, enough, killed = Reply(client, LONG, model=MODEL), Event(), set[int]()
        reading = thread.submit(read_on, reply, enough)
        try:
            for _ in range(NUM_KILLS):
                kill_at_work(cluster, reply, killed)
            num_before = len(reply.tokens)
            wait_until(lambda: len(reply.tokens) >= num_before + 20, "it goes on")
        finally:
            enough.set()
            reading.result()
            reply.hang_up()
        assert reply.tokens[:NUM_COMPARED] == undisturbed


def test_one_worker_dies_at_each_start(cluster: Cluster) -> None:
    cluster.wait_all_ready()
    others = {name: pid for name, pid in cluster.pids().items() if name != "worker-2"}
    killed: set[int] = set()
    look: dict[str, Any] = {}

    def is_failing() -> bool:
        look.update(cluster.look())
        pid = cluster.pids().get("worker-2")
        if pid is not None and pid not in killed:
            killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        failing = {"name": "worker-2", "pid": None, "state": "failing", "stage": ""}
        return failing in look["services"]

    with cluster.client() as client:
        undisturbed = Reply(client, model=MODEL).read_to_end()
        reply = Reply(client, model=MODEL)
        reply.read(5)
        wait_until(is_failing, "it is given little hope")
        assert look["state"] == "degraded"
        assert look["reasons"] == ["worker-2 is failing: its turns go to others, or wait"]
        assert reply.read_to_end() == undisturbed
        assert Reply(client, model=MODEL).read_to_end() == undisturbed
    assert {name: pid for name, pid in cluster.pids().items() if name != "worker-2"} == others
    cluster.wait_all_ready()  # it is tried again, and lives
    assert cluster.pids()["worker-2"] not in killed
