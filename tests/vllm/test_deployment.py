"""A deployment whose worker is on a real vLLM, with a KV cache of its own that holds little.

Run by this repository's Python; ``SYMPHONY_VLLM_PYTHON`` names the one that has vLLM. Numbers are
fp32, so that tokens do not depend on what a batch looks like.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import OpenAI

from loadtest.deployment import wait_until
from tests.cluster import Cluster

PYTHON = os.environ.get("SYMPHONY_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="SYMPHONY_VLLM_PYTHON names no Python with vLLM"),
]

NUM_BLOCKS = 30  # of vLLM's cache, so that four conversations do not fit
SETTINGS = {
    "SYMPHONY_VLLM_PYTHON": PYTHON,
    "SYMPHONY_DTYPE": "float32",
    "SYMPHONY_NUM_THREADS": "1",
    "SYMPHONY_MAX_MODEL_LEN": "1024",
    "SYMPHONY_VLLM_ARGS": json.dumps({"num_gpu_blocks_override": NUM_BLOCKS}),
}
NUM_NEW = 24
SENTENCE = "The river ran past mill number {} and the children counted the boats. "

Messages = list[Any]


@dataclass(frozen=True)
class Reply:
    """Attributes:
    cached: prompt tokens that were not computed, and where they were.
    """

    text: str
    cached: int
    places: dict[str, int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("vllm") / "data"
    with Cluster(place, "--engine", "vllm", settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made.with_options(timeout=300)


def begin(number: int) -> Messages:
    """A conversation of some 550 tokens."""
    return [{"role": "user", "content": SENTENCE.format(number) * 8 + "Tell me a story."}]


def ask(client: OpenAI, messages: Messages, session: str = "", **more: Any) -> Reply:
    """A turn, greedy and of equal length."""
    extra = {
        "ignore_eos": True,
        "return_cached_tokens_details": True,
        **({"session_id": session} if session else {}),
        **more,
    }
    made = client.chat.completions.create(
        model=client.models.list().data[0].id, messages=messages, max_tokens=NUM_NEW,
        temperature=0, extra_body=extra,
    )  # fmt: skip
    assert made.usage is not None
    details: Any = made.usage.prompt_tokens_details
    places = (details.model_extra or {}).get("cached_tokens_details", {})
    return Reply(made.choices[0].message.content or "", details.cached_tokens, places)


def computed(client: OpenAI, messages: Messages, salt: str) -> str:
    """The reply when nothing is reused: its salt is of this question alone."""
    reply = ask(client, messages, cache_salt=salt)
    assert not reply.cached
    return reply.text


def go_on(messages: Messages, reply: Reply) -> Messages:
    said = {"role": "assistant", "content": reply.text}
    return [*messages, said, {"role": "user", "content": "And then?"}]


def test_turns_come_back_from_below_and_say_the_same(client: OpenAI) -> None:
    talks = [begin(number) for number in range(4)]
    for number, talk in enumerate(talks):
        talks[number] = go_on(talk, ask(client, talk, f"s{number}"))
    for number, talk in enumerate(talks):  # each has pushed the others out of vLLM's cache
        reply = ask(client, talk, f"s{number}")
        assert reply.cached >= 512 and reply.places.get("host", 0) >= 448, (number, reply)
        assert reply.text == computed(client, talk, f"again{number}")


def long_reply(client: OpenAI, messages: Messages, salt: str) -> str:
    made = client.chat.completions.create(
        model=client.models.list().data[0].id, messages=messages, max_tokens=200,
        temperature=0, extra_body={"ignore_eos": True, "cache_salt": salt},
    )  # fmt: skip
    return made.choices[0].message.content or ""


def test_a_deleted_session_is_found_nowhere(cluster: Cluster, client: OpenAI) -> None:
    talk = begin(20)
    ask(client, talk, "gone")
    assert ask(client, talk, "gone").cached >= 512
    url = f"{cluster.url}/v1/sessions/gone"
    wait_until(lambda: httpx.delete(url, timeout=60).is_success, "the session is deleted")
    assert ask(client, talk, "other").cached == 0


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_after_a_kill_turns_go_on_and_kv_comes_from_below(
    cluster: Cluster, client: OpenAI, victim: str
) -> None:
    talk = begin(30 + len(victim))
    talk = go_on(talk, ask(client, talk, victim))
    expected = long_reply(client, talk, f"{victim}-alone")
    pid = cluster.pids()["worker-0"]
    texts: list[str] = []
    thread = threading.Thread(
        target=lambda: texts.append(long_reply(client, talk, f"{victim}-moved"))
    )
    thread.start()
    wait_until(lambda: cluster.look()["workers"][0]["num_turns"] > 0, "the turn runs")
    os.kill(engine_of(pid) if victim == "engine" else pid, signal.SIGKILL)
    thread.join()
    assert texts == [expected], "with the tokens that it had"
    cluster.wait_restarted("worker-0", pid)
    assert ask(client, talk, victim).cached >= 512


def test_when_nats_is_back_turns_come_and_reuse(cluster: Cluster, client: OpenAI) -> None:
    talk = begin(70)
    talk = go_on(talk, ask(client, talk, "w"))
    expected = computed(client, talk, "w-alone")
    cluster.wait_restarted("nats", cluster.kill("nats"))
    cluster.wait_all_ready()
    for number in range(4):
        ask(client, begin(80 + number), f"v{number}")
    reply = ask(client, talk, "w")
    assert reply.text == expected and reply.cached >= 512


def test_without_a_kvstore_turns_go_on_and_with_it_again_they_reuse(
    cluster: Cluster, client: OpenAI
) -> None:
    talk = begin(40)
    first = ask(client, talk, "n")
    talk = go_on(talk, first)
    expected = computed(client, talk, "n-alone")
    pid = cluster.kill("kvstore")
    assert ask(client, talk, "n").text == expected
    cluster.wait_restarted("kvstore", pid)
    for number in range(4):  # what was there is pushed out of vLLM's cache, and stored
        ask(client, begin(50 + number), f"m{number}")
    wait_until(lambda: ask(client, talk, "n").cached >= 512, "the kvstore is used again")
    assert ask(client, talk, "n").text == expected


def engine_of(worker_pid: int) -> int:
    """vLLM's engine process of a worker."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as line:
                fields, words = stat.read().rsplit(")", 1)[1].split(), line.read()
        except OSError:
            continue
        if int(fields[2]) == worker_pid and "EngineCore" in words:
            return int(name)
    raise AssertionError("no engine process")
