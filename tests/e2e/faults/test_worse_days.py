"""Days on which something is away or stands still for seconds, while people are served: nobody's
reply changes by a token, and nobody else ends.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from loadtest.chaos.away import Nats
from loadtest.deployment import wait_until
from shared.blocks import BLOCK_TOKENS
from tests.cluster import Cluster
from tests.e2e.replies import REPLY_TOKENS, STEADY, Reply, busy_workers, is_idle, steady
from tests.e2e.replies import say as say_to

AWAY_S = 4.0
STILL_S = 7.0
NUM_STREAMS = 16
NUM_EXPECTED = 20
SECOND_TOKENS = 20
say = partial(say_to, model=STEADY)

Messages = list[ChatCompletionMessageParam]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    server = Nats(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats: Nats) -> Iterator[Cluster]:
    """On a NATS that its supervisor does not start again."""
    folder = tmp_path_factory.mktemp("worse-days")
    env = {"SYMPHONY_NATS_URL": nats.url}
    with Cluster(
        folder / "data", "--emulate", steady(folder), "--workers", "2", settings=env
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(client: OpenAI) -> list[tuple[int, ...]]:
    """The reply on a good day."""
    return Reply(client, model=STEADY).read_to_end()


@contextmanager
def everybody(number: int) -> Iterator[ThreadPoolExecutor]:
    """So many people at once."""
    with ThreadPoolExecutor(number) as pool:
        yield pool


@contextmanager
def standing_still(cluster: Cluster, name: str) -> Iterator[None]:
    """A process that lives and does nothing."""
    pid = cluster.kill(name, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_nats_is_away(
    cluster: Cluster, nats: Nats, client: OpenAI, undisturbed: list[tuple[int, ...]]
) -> None:
    before = cluster.pids()
    replies = [Reply(client, model=STEADY) for _ in range(2)]
    for reply in replies:
        reply.read(5)
    with everybody(1) as other:
        nats.kill()
        try:
            late = other.submit(
                lambda: Reply(client, model=STEADY).read_to_end()
            )  # somebody who asks meanwhile
            time.sleep(AWAY_S)
        finally:
            nats.start()
        assert all(reply.read_to_end() == undisturbed for reply in replies)
        assert late.result() == undisturbed
    cluster.wait_all_ready()
    assert cluster.pids() == before


def test_a_worker_that_stands_still_is_not_waited_for(
    cluster: Cluster, client: OpenAI, undisturbed: list[tuple[int, ...]]
) -> None:
    """What a step that hangs looks like from outside: nothing short of a debugger stops the one
    thread that computes, so the whole process stands still. Its own watch over steps needs half a
    minute, and is tested beside it.
    """
    wait_until(lambda: is_idle(cluster), "earlier turns are over")
    before = cluster.pids()
    reply = Reply(client, model=STEADY)
    reply.read(5)
    (busy,) = busy_workers(cluster)
    with standing_still(cluster, busy):
        assert reply.read_to_end() == undisturbed
    cluster.wait_all_ready()
    assert Reply(client, model=STEADY).read_to_end() == undisturbed
    assert cluster.pids() == before  # it went on, and forgot the turn that went elsewhere
    wait_until(lambda: is_idle(cluster), "nobody computes for nobody")


def conversation(number: int) -> tuple[str, str]:
    """A session and what is said in it first: more than a block."""
    text = f"Tell me of the {number} millers who ground salt, and of what the sea said to each."
    return f"talk-{number}", text


def second_turn(text: str, first: ChatCompletion) -> Messages:
    answer = first.choices[0].message.content
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And then?"},
    ]


def blocks_of(first: ChatCompletion) -> int:
    """Tokens whose KV a next turn must find."""
    assert first.usage is not None
    return (first.usage.total_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_the_frontend_dies_and_its_clients_come_back_to_their_kv(
    cluster: Cluster, client: OpenAI
) -> None:
    def begin(number: int) -> tuple[ChatCompletion, Reply]:
        session_id, text = conversation(number)
        first = say(client, text, session_id)
        reply = Reply(client, REPLY_TOKENS, second_turn(text, first), session_id, STEADY)
        reply.read(3)
        return first, reply

    def break_off(reply: Reply) -> bool:
        try:
            reply.read_to_end()
        except (openai.APIError, httpx.HTTPError):
            return True
        return False

    def come_back(number: int, first: ChatCompletion) -> Reply:
        session_id, text = conversation(number)
        reply = Reply(patient, REPLY_TOKENS, second_turn(text, first), session_id, STEADY)
        reply.read_to_end()
        return reply

    others = {name: pid for name, pid in cluster.pids().items() if name != "frontend"}
    with everybody(NUM_STREAMS) as people, cluster.client() as made:
        patient = made.with_options(max_retries=10)  # as clients are
        begun = list(people.map(begin, range(NUM_STREAMS)))
        pid = cluster.kill("frontend")
        assert all(people.map(break_off, [reply for _, reply in begun]))
        cluster.wait_restarted("frontend", pid)
        wait_until(lambda: STEADY in models(cluster), "it knows the model")
        firsts = [first for first, _ in begun]
        again = list(people.map(come_back, range(NUM_STREAMS), firsts))
    for (first, broken), whole in zip(begun, again, strict=True):
        assert whole.tokens[: len(broken.tokens)] == broken.tokens
        assert whole.cached_tokens >= blocks_of(first) > 0
    for number in range(NUM_STREAMS):
        session = httpx.get(f"{cluster.url}/v1/sessions/{conversation(number)[0]}").json()
        # The one that broke does not count, nor one that came while Redis kept it waiting.
        assert 1 <= session["num_turns"] <= 2
    assert {name: pid for name, pid in cluster.pids().items() if name != "frontend"} == others


def models(cluster: Cluster) -> list[str]:
    """That the frontend knows."""
    return [model["id"] for model in httpx.get(f"{cluster.url}/v1/models").json()["data"]]


def test_the_kvstore_stands_still_while_many_are_expected(cluster: Cluster, client: OpenAI) -> None:
    wait_until(lambda: is_idle(cluster), "earlier turns are over")
    names = [conversation(number) for number in range(100, 100 + NUM_EXPECTED)]

    def begin(name: tuple[str, str]) -> tuple[Messages, list[tuple[int, ...]]]:
        """The first turn, and what the second must be, as somebody else hears it."""
        session_id, text = name
        messages = second_turn(text, say(client, text, session_id))
        return messages, Reply(client, SECOND_TOKENS, messages, model=STEADY).read_to_end()

    def go_on(name: tuple[str, str], messages: Messages) -> list[tuple[int, ...]]:
        return Reply(client, SECOND_TOKENS, messages, name[0], STEADY).read_to_end()

    with everybody(NUM_EXPECTED) as people:
        begun = list(people.map(begin, names))
        wait_until(lambda: is_idle(cluster), "everything is written down")
        pids = {name: cluster.kill(name) for name in ("worker-0", "worker-1")}
        for name, pid in pids.items():
            cluster.wait_restarted(name, pid)
        before = cluster.pids()
        for session_id, _ in names:
            advisory = {"session_id": session_id, "model_id": STEADY, "expected_arrival": 1}
            answer = httpx.post(f"{cluster.url}/v1/advisories", json=advisory)
            assert answer.status_code == 202
        with standing_still(cluster, "kvstore"):  # while it brings them up
            still_until = time.monotonic() + STILL_S
            heard = list(people.map(go_on, names, [messages for messages, _ in begun]))
            time.sleep(max(still_until - time.monotonic(), 0))
    assert heard == [expected for _, expected in begun]
    cluster.wait_all_ready()
    wait_until(lambda: is_idle(cluster), "everything is written down")
    wait_until(lambda: nothing_is_held(cluster), "nothing is held for anybody any more")
    assert cluster.pids() == before


def nothing_is_held(cluster: Cluster) -> bool:
    """No block is pinned in the arena, and no session expected."""
    look = cluster.look()
    expected = sum(worker["num_reservations"] for worker in look["workers"])
    return bool(look["tiers"]["arena"]["blocks_pinned"] == expected == 0)
