"""A user who asks to be forgotten is forgotten: by workers, kvstores and Redis, on disk too, and
while their turn runs.

Workers are emulated, with pages of real bytes, since they are killed again and again: what is found
of a session does not depend on what computed it.
"""

import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from loadtest.deployment import wait_until
from tests.cluster import Cluster

SECRET = "the cheese is hidden under the third stone from the left"
MODEL = "a100-llama3-8b"
TRUE_PAGES = {"SYMPHONY_TRUE_PAGES": "true"}
REPLY_TOKENS = 80
LONG_TOKENS = 1000

Message = dict[str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("deletion") / "data"
    with Cluster(place, "--workers", "2", "--emulate", MODEL, settings=TRUE_PAGES) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def options(session_id: str, messages: list[Message], num_tokens: int) -> dict[str, Any]:
    """A turn that generates exactly so many tokens."""
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": num_tokens,
        "temperature": 0,
        "extra_body": {"session_id": session_id, "ignore_eos": True},
    }


def ask(client: OpenAI, session_id: str, messages: list[Message]) -> tuple[int, Message]:
    """One turn: its `cached_tokens`, and its reply."""
    reply = client.chat.completions.create(**options(session_id, messages, REPLY_TOKENS))
    cached: int = reply.usage.prompt_tokens_details.cached_tokens
    return cached, {"role": "assistant", "content": reply.choices[0].message.content}


def delete(cluster: Cluster, session_id: str) -> int:
    """Number of blocks that went."""
    answer = httpx.delete(f"{cluster.url}/v1/sessions/{session_id}", timeout=30)
    assert answer.status_code == 200, answer.text
    num_blocks: int = answer.json()["num_blocks"]
    return num_blocks


def assert_forgotten(cluster: Cluster, client: OpenAI, *prompts: list[Message]) -> None:
    """No worker has any of it, nor would one that has just started."""
    _assert_uncached(cluster, client, *prompts)
    pids = {name: cluster.kill(name) for name in ("worker-0", "worker-1")}
    for name, pid in pids.items():
        cluster.wait_restarted(name, pid)
    cluster.wait_healthy()
    _assert_uncached(cluster, client, *prompts)


def _assert_uncached(cluster: Cluster, client: OpenAI, *prompts: list[Message]) -> None:
    for prompt in prompts:
        assert ask(client, "probe", prompt)[0] == 0
        delete(cluster, "probe")


def num_on_disk(cluster: Cluster) -> int:
    """Blocks, of all sessions."""
    num_blocks: int = cluster.look()["tiers"]["disk"]["blocks"]
    return num_blocks


def redis_files(cluster: Cluster) -> bytes:
    """What Redis has in its files."""
    found = b""
    for path in sorted((cluster.data_dir / "redis").rglob("*")):
        try:
            found += path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:  # rewritten meanwhile
            continue
    return found


def test_nothing_is_left_of_a_deleted_session(cluster: Cluster, client: OpenAI) -> None:
    begin = [user(f"Keep this to yourself: {SECRET}. " * 4)]
    cached, reply = ask(client, "fox", begin)
    assert cached == 0
    abandoned = [*begin, reply, user("Tell me of the crow, and at length. " * 6)]
    assert ask(client, "fox", abandoned)[0] > 0
    edited = [*begin, reply, user("Tell me of the raven instead of the crow. " * 6)]
    assert ask(client, "fox", edited)[0] > 0  # its record says nothing of `abandoned`
    wait_until(lambda: num_on_disk(cluster) > 8, "blocks are on disk")

    with cluster.redis() as redis:
        redis.config_set("aof-use-rdb-preamble", "no")  # a rewritten file is plain text
        (key,) = redis.keys("symphony:session:*")
        record = redis.get(key)
    found = re.search(rb'"tokens":"([^"]+)"', record)
    assert found is not None
    tokens = found[1]
    wait_until(lambda: tokens in redis_files(cluster), "Redis has written the record down")
    assert SECRET.encode() not in redis_files(cluster), "of its text it never had anything"

    assert delete(cluster, "fox") > 8
    wait_until(lambda: tokens not in redis_files(cluster), "Redis has rewritten its file")
    assert_forgotten(cluster, client, abandoned, edited)
    assert httpx.get(f"{cluster.url}/v1/sessions/fox").status_code == 404


class Stream(threading.Thread):
    """A turn that is streamed.

    Attributes:
        has_begun: its first token came.
        num_tokens: that came, by its usage.
        finish: how it ended.
    """

    def __init__(self, client: OpenAI, session_id: str, messages: list[Message]) -> None:
        super().__init__()
        self._create: Any = client.chat.completions.create
        self._options = options(session_id, messages, LONG_TOKENS)
        self.has_begun = threading.Event()
        self.num_tokens = 0
        self.finish = ""

    def run(self) -> None:
        usage = {"include_usage": True}
        for chunk in self._create(stream=True, stream_options=usage, **self._options):
            if chunk.usage is not None:
                self.num_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                if choice.delta.content:
                    self.has_begun.set()
                self.finish = choice.finish_reason or self.finish


def test_a_session_is_forgotten_while_its_turn_runs(cluster: Cluster, client: OpenAI) -> None:
    forgotten = [user("Tell me all that the owl saw last night, hour by hour. " * 4)]
    kept = [user("Tell me all that the badger heard, and leave nothing out. " * 4)]
    owl, badger = Stream(client, "owl", forgotten), Stream(client, "badger", kept)
    owl.start()
    badger.start()
    assert owl.has_begun.wait(30) and badger.has_begun.wait(30)
    assert not owl.finish
    answer = httpx.delete(f"{cluster.url}/v1/sessions/owl", timeout=30)
    assert not owl.finish, "it ended too soon to tell anything"
    assert answer.status_code == 200, answer.text
    for stream in (owl, badger):
        stream.join(60)
        assert (stream.finish, stream.num_tokens) == ("length", LONG_TOKENS)
    assert httpx.get(f"{cluster.url}/v1/sessions/owl").status_code == 404
    assert ask(client, "badger", kept)[0] > 0
    assert_forgotten(cluster, client, forgotten)
    assert httpx.get(f"{cluster.url}/v1/sessions/badger").status_code == 200
