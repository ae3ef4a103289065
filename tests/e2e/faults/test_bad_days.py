"""What may go wrong while people are served: bad requests, processes killed in the middle of a
reply, damaged bytes, a lost index, clients that hang up.

A reply that was disturbed must be, token for token, the one that was not. Workers are emulated,
since they are killed again and again: what they say they read tells of every earlier token.
"""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import lmdb
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from redis import Redis
from redis.exceptions import RedisError

from cli.base.children import free_port, start_child, stop_child
from loadtest.deployment import symphony, wait_until
from services.kvstore.tiers.disk.records import read_place
from services.kvstore.tiers.disk.slab import slot_bytes
from shared.blocks import BLOCK_TOKENS, unpack_keys
from shared.ids import DEFAULT_TENANT, SessionId
from shared.locations import KV_HOSTS_KEY, decode_lives, decode_locations, location_redis_key
from shared.owners import owner_key
from shared.runtime.exposition import samples_of
from shared.wire.sessions import decode_record, session_redis_key
from tests.cluster import Cluster
from tests.e2e.replies import (
    PROMPT,
    REPLY_TOKENS,
    STEADY,
    WHOLE_LENGTH,
    Reply,
    busy_workers,
    cached_tokens,
    is_idle,
    steady,
)
from tests.e2e.replies import say as say_to

NUM_STREAMS = 4
TWO_WORKERS = ("worker-0", "worker-1")
say = partial(say_to, model=STEADY)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("bad-days")
    options = ("--emulate", steady(folder), "--workers", "2")
    with Cluster(folder / "data", *options, settings={"SYMPHONY_DRAIN_S": "120"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made


@contextmanager
def in_mid_reply(cluster: Cluster, client: OpenAI) -> Iterator[Reply]:
    """A reply that has begun and that a worker is at."""
    reply = Reply(client, model=STEADY)
    reply.read(5)
    assert busy_workers(cluster)
    yield reply
    reply.hang_up()


@pytest.fixture(scope="module")
def undisturbed(client: OpenAI) -> list[tuple[int, ...]]:
    """The reply on a good day."""
    tokens = Reply(client, model=STEADY).read_to_end()
    assert len(tokens) == REPLY_TOKENS
    return tokens


def kill(cluster: Cluster, *names: str) -> Callable[[], None]:
    """SIGKILL these children together; call what it returns to wait until they are back."""
    pids = {name: cluster.kill(name) for name in names}

    def wait_back() -> None:
        for name, pid in pids.items():
            cluster.wait_restarted(name, pid)

    return wait_back


def counts(cluster: Cluster, metric: str, label: str) -> dict[str, float]:
    """A metric by the values of one of its labels."""
    found = samples_of(httpx.get(f"{cluster.url}/metrics").text, {metric})
    return {labels[label]: value for _, labels, value in found}


def num_errors(cluster: Cluster) -> dict[str, float]:
    """Errors that were answered, by HTTP status."""
    return counts(cluster, "http_errors_total", "code")


def num_aborted(cluster: Cluster) -> float:
    """Replies whose client went away."""
    return counts(cluster, "request_success_total", "finished_reason").get("abort", 0)


def chat(**fields: Any) -> bytes:
    """The body of a chat, with fields of a bad day."""
    body = {
        "model": STEADY,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
    }
    return json.dumps({**body, **fields}).encode()


JSON = {"Content-Type": "application/json"}
CHATS = "/v1/chat/completions"
ERROR_FIELDS = {"message", "type", "param", "code"}
NO_SESSION = "/v1/sessions/nobody"
ABSURD: list[dict[str, Any]] = [
    {"temperature": -1},
    {"temperature": float("nan")},
    {"max_tokens": -5},
    {"max_tokens": "5"},
    {"n": 10**9},
    {"top_p": 7},
    {"stop": ["x"] * 1000},
    {"logit_bias": {"1": 1e9}},
    {"logit_bias": {"999999": 1}},
    {"messages": []},
    {"messages": "hello"},
    {"messages": [{"role": "cat", "content": "miaow"}]},
    {"session_id": "x" * 10_000},
    {"seed": 10**40},
]
BAD_REQUESTS: dict[str, tuple[str, str, bytes, int, str]] = {
    "unknown model": ("POST", CHATS, chat(model="gpt-x"), 404, "model_not_found"),
    "malformed JSON": ("POST", CHATS, b'{"model": "symphony-demo", "mess', 400, "invalid_request"),
    "a list": ("POST", CHATS, b"[]", 400, "invalid_request"),
    "nothing": ("POST", CHATS, b"", 400, "invalid_request"),
    "wrong UTF-8": ("POST", CHATS, chat().replace(b"hello", b"\xff\xfe"), 400, "invalid_request"),
    "half a surrogate": ("POST", CHATS, chat(user="\ud800"), 400, "invalid_request"),
    "too long": (
        "POST", CHATS, chat(messages=[{"role": "user", "content": "long " * 20_000}]), 400,
        "context_length_exceeded",
    ),
    "100 MB": ("POST", CHATS, b" " * 100_000_000, 413, "request_too_large"),
    "no session": ("GET", NO_SESSION, b"", 404, "not_found"),
    "no session to delete": ("DELETE", NO_SESSION, b"", 404, "not_found"),
    "no advisory": ("GET", "/v1/advisories/nobody", b"", 404, "advisory_not_found"),
    "no such path": ("GET", "/v1/nonsense", b"", 404, "unknown_url"),
    **{
        f"absurd {json.dumps(fields)[:40]}": ("POST", CHATS, chat(**fields), 400, "invalid_request")
        for fields in ABSURD
    },
}  # fmt: skip


def test_bad_requests_are_refused_counted_and_crash_nothing(
    cluster: Cluster, client: OpenAI
) -> None:
    pids, expected = cluster.pids(), num_errors(cluster)
    wrong = []
    for name, (method, path, body, status, code) in BAD_REQUESTS.items():
        url = f"{cluster.url}{path}"
        answer = httpx.request(method, url, content=body, headers=JSON, timeout=60)
        expected[str(status)] = expected.get(str(status), 0) + 1
        error = answer.json().get("error", {})
        if (answer.status_code, error.get("code"), set(error)) != (status, code, ERROR_FIELDS):
            wrong.append((name, answer.status_code, answer.text[:200]))
    assert not wrong
    endless = itertools.repeat(bytes(1_000_000), 100)  # 100 MB of a length that nobody was told
    answer = httpx.post(f"{cluster.url}{CHATS}", content=endless, headers=JSON, timeout=60)
    assert answer.status_code == 413
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt-x")
    assert raised.value.code == "model_not_found"
    expected["404"] += 1
    expected["413"] += 1
    assert num_errors(cluster) == expected
    assert say(client).choices[0].finish_reason == "length"
    assert cluster.pids() == pids


def test_worker_killed_in_mid_reply_goes_on_elsewhere(
    cluster: Cluster, client: OpenAI, undisturbed: list[tuple[int, ...]]
) -> None:
    with in_mid_reply(cluster, client) as reply:
        (busy,) = busy_workers(cluster)
        wait_back = kill(cluster, busy)
        assert reply.read_to_end() == undisturbed
    wait_back()


def test_worker_that_is_told_to_end_passes_its_reply_on(
    cluster: Cluster, client: OpenAI, undisturbed: list[tuple[int, ...]]
) -> None:
    with in_mid_reply(cluster, client) as reply:
        (busy,) = busy_workers(cluster)
        pid = cluster.kill(busy, signal.SIGTERM)
        assert reply.read_to_end() == undisturbed
    (log,) = cluster.logs.glob("scheduler*.log")
    assert '"reason":"migrated"' in log.read_text(), "it did not wait for its end there"
    cluster.wait_restarted(busy, pid)


def test_every_worker_killed_in_mid_reply_goes_on_when_one_is_back(
    cluster: Cluster, client: OpenAI, undisturbed: list[tuple[int, ...]]
) -> None:
    with in_mid_reply(cluster, client) as reply:
        wait_back = kill(cluster, *TWO_WORKERS)
        assert reply.read_to_end() == undisturbed
    wait_back()


@pytest.mark.parametrize("name", ["scheduler", "tracker", "kvstore", "redis", "nats"])
def test_service_killed_in_mid_reply(
    cluster: Cluster, client: OpenAI, undisturbed: list[tuple[int, ...]], name: str
) -> None:
    others = {child: pid for child, pid in cluster.pids().items() if child != name}
    with in_mid_reply(cluster, client) as reply:
        wait_back = kill(cluster, name)
        assert say(client, "Somebody else asks meanwhile.").choices[0].finish_reason == "length"
        assert reply.read_to_end() == undisturbed
    wait_back()
    wait_until(
        lambda: {child["state"] for child in cluster.look()["services"]} == {"ready", "running"},
        "everybody is connected again",
    )
    assert say(client).choices[0].finish_reason == "length"
    assert {child: pid for child, pid in cluster.pids().items() if child != name} == others


def test_every_service_is_replaced_while_streams_go_on(
    cluster: Cluster, client: OpenAI, undisturbed: list[tuple[int, ...]]
) -> None:
    """As docs/operations.md has it: a second frontend takes new requests while the first ends."""
    before = cluster.pids()
    others = sorted(before.keys() - {"nats", "redis", "frontend"})
    restart = partial(symphony, "restart", "--data-dir", str(cluster.data_dir))
    with second_frontend(cluster) as (second, second_client):
        clients = [client]
        with streaming(clients, undisturbed), ThreadPoolExecutor(1) as reader:
            done = restart(*others)
            assert done.returncode == 0, done.stderr
            long = Reply(client, 3 * REPLY_TOKENS, model=STEADY)
            long.read(5)
            read = reader.submit(long.read_to_end)
            clients.append(second_client)
            done = restart("frontend")
            assert done.returncode == 0, done.stderr
            assert read.result()[:REPLY_TOKENS] == undisturbed
            clients.append(client)
            second.terminate()
            assert second.wait(120) == 0, "its streams have ended"
    after = cluster.pids()
    replaced = {name for name in before if after[name] != before[name]}
    assert replaced == {*others, "frontend"}


@contextmanager
def second_frontend(cluster: Cluster) -> Iterator[tuple["subprocess.Popen[bytes]", OpenAI]]:
    """Another frontend with the settings of the deployment's own, and a client of it."""
    port = free_port()
    variables = Path(f"/proc/{cluster.pids()['frontend']}/environ").read_text().split("\0")
    env = dict(variable.split("=", 1) for variable in variables if variable)
    process = start_child(
        [sys.executable, "-P", "-m", "services.frontend"],
        log_path=cluster.logs / "second-frontend.log",
        env={**env, "SYMPHONY_HTTP_PORT": str(port), "SYMPHONY_INSTANCE": "second"},
    )
    try:
        with OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60
        ) as client:
            wait_until(lambda: is_healthy(port), "the second frontend serves")
            yield process, client
    finally:
        stop_child(process)


def is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def streaming(clients: Sequence[OpenAI], expected: list[tuple[int, ...]]) -> Iterator[None]:
    """Replies, one after another in each of several threads, each by the client that is the last
    now; every one is as expected.
    """
    is_over = threading.Event()

    def stream() -> int:
        num_replies = 0
        while not is_over.is_set():
            assert Reply(clients[-1], model=STEADY).read_to_end() == expected
            num_replies += 1
        return num_replies

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams = [pool.submit(stream) for _ in range(NUM_STREAMS)]
        try:
            yield
        finally:
            is_over.set()
        assert all(future.result() for future in streams)


def test_flipped_byte_on_disk_is_found_and_computed_again(cluster: Cluster, client: OpenAI) -> None:
    session_id = "damaged"
    text = "What is written down may rot, so read it with care and doubt what you find. " * 4
    num_before = cluster.look()["tiers"]["disk"]["blocks"]
    good = say(client, text, session_id)
    full = full_blocks(good)
    wait_until(
        lambda: cluster.look()["tiers"]["disk"]["blocks"] >= num_before + full // BLOCK_TOKENS,
        "its blocks are stored",
    )
    flip_byte(cluster, session_id)
    kill(cluster, "kvstore", *TWO_WORKERS)()  # what is in memory is sound

    again = say(client, text, session_id)
    assert again.choices[0].message.content == good.choices[0].message.content
    assert cached_tokens(again) < full
    assert cluster.status()["tiers"]["disk"]["pages_corrupt"] == 1
    once_more = say(client, text, session_id)
    assert once_more.choices[0].message.content == good.choices[0].message.content
    assert cached_tokens(once_more) == full


def flip_byte(cluster: Cluster, session_id: str) -> None:
    """Damage one layer of the session's second block, in its slab."""
    with cluster.redis() as redis:
        record = redis.get(session_redis_key(DEFAULT_TENANT, SessionId(session_id)))
    assert record is not None
    key = unpack_keys(decode_record(record).block_keys)[1]
    folder = cluster.data_dir / "kv"
    with (
        lmdb.open(str(folder), readonly=True, lock=False, max_dbs=4) as env,
        env.begin(db=env.open_db(b"blocks", create=False)) as transaction,
    ):
        raw = transaction.get(key)
        assert raw is not None
        num_layers, page_bytes, slot = read_place(raw, key)
    with (folder / f"{num_layers}x{page_bytes}.slab").open("r+b") as file:
        at = slot * slot_bytes(num_layers, page_bytes) + page_bytes + page_bytes // 2
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_restarted_redis_remembers_sessions(cluster: Cluster, client: OpenAI) -> None:
    say(client, session_id="kept")
    kill(cluster, "redis")()
    with cluster.redis() as redis:
        wait_until(lambda: is_up(redis), "Redis answers")
    say(client, session_id="kept")
    assert httpx.get(f"{cluster.url}/v1/sessions/kept").json()["num_turns"] == 2


def is_up(redis: Redis) -> bool:
    """Whether it has read its files and answers."""
    try:
        return bool(redis.ping())
    except RedisError:
        return False


def test_wiped_redis_is_filled_again(cluster: Cluster, client: OpenAI) -> None:
    text = "Forget me not. " * 40  # whole blocks, of no other session
    first = say(client, text, "forgotten")
    with cluster.redis() as redis:
        redis.flushall()
        assert httpx.get(f"{cluster.url}/v1/sessions/forgotten").status_code == 404
        again = say(client, text, "forgotten")
        assert again.choices[0].message.content == first.choices[0].message.content
        assert httpx.get(f"{cluster.url}/v1/sessions/forgotten").json()["num_turns"] == 1
        located = location_redis_key(owner_key(DEFAULT_TENANT, SessionId("forgotten")))

        def hosts() -> set[str]:
            lives = decode_lives(redis.hgetall(KV_HOSTS_KEY))
            return {*decode_locations(redis.hgetall(located), lives)}

        wait_until(lambda: hosts() == {cluster.run.host_id}, "its KV is known to be there again")


@pytest.mark.parametrize("away_s", [3.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_turns_are_served_while_redis_does_not_answer(
    cluster: Cluster, client: OpenAI, away_s: float
) -> None:
    name = f"stuck for {away_s:g} s"
    text = f"This is said to one who is {name}. " * 10
    full = full_blocks(say(client, text, name))
    wait_until(lambda: is_idle(cluster), "earlier turns are over")
    num_turns = 0
    cluster.kill("redis", signal.SIGSTOP)
    try:
        until = time.monotonic() + away_s
        while time.monotonic() < until or num_turns < 2:
            reply = say(client, text, name)
            num_turns += 1
            assert reply.choices[0].finish_reason == "length"
            assert cached_tokens(reply) >= full, "what is known of it here is used"
            assert say(client).choices[0].finish_reason == "length"
    finally:
        cluster.kill("redis", signal.SIGCONT)

    def is_settled() -> bool:
        say(client, text, name)
        found = httpx.get(f"{cluster.url}/v1/sessions/{name}")
        return found.status_code == 200 and found.json()["num_turns"] >= 2

    wait_until(is_settled, "its record is kept again")


def full_blocks(reply: ChatCompletion) -> int:
    """Tokens of its prompt in whole blocks."""
    assert reply.usage is not None
    return reply.usage.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_hangs_up_frees_the_worker(
    cluster: Cluster, client: OpenAI, stream: bool
) -> None:
    wait_until(lambda: is_idle(cluster), "earlier turns are over")
    num_before = num_aborted(cluster)
    if stream:
        reply = Reply(client, 7_000, model=STEADY)
        reply.read(5)
        assert busy_workers(cluster)
        reply.hang_up()
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(
                model=STEADY,
                messages=[{"role": "user", "content": PROMPT}],
                max_tokens=7_000,  # about a minute
                extra_body=WHOLE_LENGTH,
            )
    wait_until(lambda: is_idle(cluster), "the turn is cancelled", timeout_s=10)
    assert num_aborted(cluster) == num_before + 1


def test_last_worker_gone_ends_the_reply_with_an_error(tmp_path: Path) -> None:
    """Not with a reason to finish, and not with ``[DONE]``."""
    model = "a100-llama3-8b"
    body = {
        "model": model, "messages": [{"role": "user", "content": "hello"}], "stream": True,
        "max_tokens": 2_000, "ignore_eos": True,
    }  # fmt: skip
    wait = {"SYMPHONY_SCHEDULER_PLACEMENT_WAIT_S": "0.5"}
    with Cluster(tmp_path / "data", "--emulate", model, "--no-restart", settings=wait) as cluster:
        with httpx.stream("POST", f"{cluster.url}{CHATS}", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            begun = [next(lines) for _ in range(10)]
            cluster.kill("worker-0")
            events = [line for line in (*begun, *lines) if line]
        *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
        assert chunks
        assert not [c for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert last["error"]["type"] == "service_unavailable_error"

        with cluster.client() as client, pytest.raises(openai.InternalServerError) as raised:
            client.completions.create(model=model, prompt="hello")
        assert raised.value.status_code == 503
        assert raised.value.response.headers["Retry-After"]
        assert httpx.get(f"{cluster.url}/health").status_code == 503
