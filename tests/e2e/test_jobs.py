"""One-shot models as a user meets them, and what becomes of jobs when processes are killed.

The worker is emulated, so that batches take exactly as long as their profile says; every result is
a function of its input alone, so a result that was computed twice or elsewhere is the same. The
target is far away, so that what is lost with a process can be done again in time on any machine,
and no refusal is forgiven.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import openai
import pytest
from openai import OpenAI

from loadtest.deployment import symphony, wait_until
from tests.cluster import Cluster

MODEL = "encoder"
PROFILE = f"linear:{MODEL}:4:20:20000"  # ms a job, a batch, the target
NUM_CLIENTS = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("jobs") / "data"
    with Cluster(folder, "--workers", "2", "--spares", "1", "--emulate", PROFILE) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made


class Load:
    """Clients that embed one text after the other until told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self.answers: list[tuple[str, int, bytes]] = []

    def __enter__(self) -> "Load":
        self._pool = ThreadPoolExecutor(NUM_CLIENTS)
        self._clients: list[Future[None]] = [
            self._pool.submit(self._run, number) for number in range(NUM_CLIENTS)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()

    def wait_more(self, num_answers: int) -> None:
        """Wait until so many more requests were answered."""
        with self._progress:
            wanted = len(self.answers) + num_answers
            assert self._progress.wait_for(lambda: len(self.answers) >= wanted, 60.0)

    def _run(self, number: int) -> None:
        with httpx.Client(base_url=self._cluster.url, timeout=30.0) as http:
            num_sent = 0
            while not self._stop.is_set():
                text = f"text {number} {num_sent % 3}"
                reply = http.post("/v1/embeddings", json={"model": MODEL, "input": text})
                num_sent += 1
                with self._progress:
                    self.answers.append((text, reply.status_code, _payload(reply)))
                    self._progress.notify_all()


def _payload(reply: httpx.Response) -> bytes:
    if reply.status_code != httpx.codes.OK:
        return reply.content
    return json.dumps(reply.json()["data"]).encode()


def leader(cluster: Cluster) -> str:
    """The scheduler process that leads: the one that began last."""
    began: dict[str, str] = {}
    for path in (cluster.data_dir / "logs").glob("scheduler*.log"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["message"] == "lease leading":
                began[path.stem] = entry["time"]
    return max(began, key=lambda name: began[name])


def check_answers(load: Load) -> None:
    """Every request was answered, and equal texts got equal embeddings."""
    refused = [payload for _, status, payload in load.answers if status != httpx.codes.OK]
    assert not refused, refused[:3]
    by_text: dict[str, set[bytes]] = {}
    for text, _, payload in load.answers:
        by_text.setdefault(text, set()).add(payload)
    assert all(len(payloads) == 1 for payloads in by_text.values())


def test_the_official_client_embeds(client: OpenAI) -> None:
    made = client.embeddings.create(model=MODEL, input=["one", "two", "one"])

    first, second, third = (item.embedding for item in made.data)
    assert first == third
    assert first != second
    assert made.usage.prompt_tokens > 0


def test_a_target_that_no_batch_can_meet_is_refused_with_the_reason(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"X-SLO-Ms: 10 ms .* 24 ms"):
        client.embeddings.create(model=MODEL, input="x", extra_headers={"X-SLO-Ms": "10"})


def test_more_than_can_be_served_in_time_is_told_at_once_to_come_again(cluster: Cluster) -> None:
    texts = [f"text {number}" for number in range(2000)]
    reply = httpx.post(
        f"{cluster.url}/v1/embeddings",
        json={"model": MODEL, "input": texts},
        headers={"X-SLO-Ms": "2500"},
        timeout=30.0,
    )

    assert reply.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert int(reply.headers["Retry-After"]) >= 1
    assert reply.json()["error"]["code"] == "deadline_unreachable"


def test_the_leader_is_killed_under_load_and_no_job_is_lost(cluster: Cluster) -> None:
    with Load(cluster) as load:
        load.wait_more(NUM_CLIENTS)
        old = leader(cluster)
        old_pid = cluster.kill(old)
        load.wait_more(NUM_CLIENTS)
        wait_until(lambda: leader(cluster) != old, "a spare leads")
    cluster.wait_restarted(old, old_pid)  # as a spare

    check_answers(load)


@pytest.mark.parametrize("name", ["worker-0", "worker-1"])
def test_a_worker_is_killed_with_a_batch_and_no_job_is_lost(cluster: Cluster, name: str) -> None:
    with Load(cluster) as load:
        load.wait_more(NUM_CLIENTS)
        old_pid = cluster.kill(name)
        load.wait_more(2 * NUM_CLIENTS)
    cluster.wait_restarted(name, old_pid)

    check_answers(load)


def test_schedulers_and_workers_are_restarted_under_load_and_no_job_is_lost(
    cluster: Cluster,
) -> None:
    before = cluster.pids()
    with Load(cluster) as load:
        load.wait_more(NUM_CLIENTS)
        where = ("--data-dir", str(cluster.data_dir))
        done = symphony("restart", "scheduler", "worker", *where)
        assert done.returncode == 0, done.stderr
        load.wait_more(NUM_CLIENTS)
    after = cluster.pids()

    replaced = {name for name in before if after[name] != before[name]}
    assert replaced == {"scheduler", "scheduler-spare-0", "worker-0", "worker-1"}
    check_answers(load)
