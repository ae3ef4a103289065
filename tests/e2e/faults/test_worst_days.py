"""Days on which a host dies for good with what only it has, or the kvstore again and again:
nobody's reply changes by a token.

What is said on such a day is rehearsed before, on KV that the disturbed sessions have no part in.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from cli.inspection.snapshot import is_alive, look
from cli.start.hosts import make_host_ids
from loadtest.deployment import wait_until
from shared.arena import Arena, ArenaError, PageState
from shared.blocks import BLOCK_TOKENS
from shared.ids import DEFAULT_TENANT, HostId, SessionId
from shared.locations import KV_HOSTS_KEY, decode_lives, decode_locations, location_redis_key
from shared.owners import owner_key
from tests.cluster import Cluster
from tests.e2e.moving import MOVING, RESTLESS
from tests.e2e.replies import PROMPT, REPLY_TOKENS, Reply

# A restless session's second turn is on the other host, which expects at once what then takes
# seconds to come. Pools have no room for all that is said: it comes up from below.
SETTINGS = {
    "SYMPHONY_SCHEDULER_POLICY": MOVING,
    "SYMPHONY_PEER_BYTES_PER_S": "4e6",
    "SYMPHONY_KV_BYTES": str(16 << 20),
    "SYMPHONY_ARENA_BYTES": str(64 << 20),  # what comes lets nothing go, so that it can be counted
}
NUM_HOSTS = 2
LONG = "Grind, quern, salt and nothing else, said the skipper, and so the quern ground on. " * 20
SHORT = "And the mill ground out a reply to whoever asked, and then to whoever asked after. " * 6
KEPT = f"{RESTLESS}-and-kept"
NUM_PAGES_COME = 24  # before the host dies
NUM_PEOPLE = 3
NUM_SESSIONS = 6
NUM_KILLS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("worst-days") / "data"
    with Cluster(place, "--hosts", str(NUM_HOSTS), settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made


@dataclass(frozen=True)
class Turn:
    """What is said, and what the reply must be."""

    messages: list[ChatCompletionMessageParam]
    tokens: list[tuple[int, ...]]

    def begin(self, client: OpenAI, session_id: str) -> Reply:
        """Say it."""
        return Reply(client, len(self.tokens), self.messages, session_id)


def rehearse(client: OpenAI, session_id: str, text: str, *lengths: int) -> list[Turn]:
    """A session's turns, with replies of these lengths, on a good day."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": text}]
    turns = []
    for length in lengths:
        reply = Reply(client, length, messages, session_id, cache_salt="rehearsed")
        turns.append(Turn(messages, reply.read_to_end()))
        messages = [
            *messages,
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": "And then?"},
        ]
    return turns


@contextmanager
def arena_of(host_id: str) -> Iterator[Arena]:
    """What its kvstore has in memory."""
    (path,) = Path(f"/dev/shm/symphony-{host_id}").glob("*.arena")
    arena = Arena.attach(path)
    yield arena
    arena.close()


def count_pages(arena: Arena, state: PageState) -> int:
    return int(np.count_nonzero(arena.words & np.uint64(0xFF) == state))


def hosts_of(cluster: Cluster) -> list[HostId]:
    return make_host_ids(HostId(cluster.run.host_id), NUM_HOSTS)


def name_of(cluster: Cluster, service: str, host_id: str) -> str:
    """How the cluster calls a process of this host's."""
    return f"{service}-{hosts_of(cluster).index(HostId(host_id))}"


def hosts_at_work(cluster: Cluster) -> set[str]:
    """Hosts whose workers have turns."""
    return {worker["host_id"] for worker in cluster.look()["workers"] if worker["num_turns"]}


def blocks_at(cluster: Cluster, session_id: str) -> dict[HostId, int]:
    """A session's blocks, by the host that has them on its disk, as everybody can know."""
    located = location_redis_key(owner_key(DEFAULT_TENANT, SessionId(session_id)))
    with cluster.redis() as redis:
        lives = decode_lives(redis.hgetall(KV_HOSTS_KEY))
        return decode_locations(redis.hgetall(located), lives)


def has_new_arena(host_id: str, known: set[tuple[int, int]]) -> bool:
    """Whether there is KV in an arena that is none of these; it is one of them then."""
    is_new = False
    with suppress(OSError, ArenaError, ValueError), arena_of(host_id) as arena:  # not made yet
        is_new = arena.identity not in known and count_pages(arena, PageState.READY) > 0
        if is_new:
            known.add(arena.identity)
    return is_new


@contextmanager
def nobody_is_restarted(cluster: Cluster) -> Iterator[None]:
    """Whoever dies stays dead."""
    cluster.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.process.send_signal(signal.SIGCONT)


def test_a_kvstore_dies_again_and_again_before_its_last_death_is_over(
    cluster: Cluster, client: OpenAI
) -> None:
    """Each time there is just a first page of KV in the arena of its new life."""

    def play(number: int) -> list[Turn]:
        return rehearse(client, f"rehearsed-{number}", f"{number}. {SHORT}", 10, 80, 20)

    def say(turn: int, number: int) -> bool:
        said = plays[number][turn]
        return said.begin(client, f"session-{number}").read_to_end() == said.tokens

    def go_on(person: int) -> bool:
        """Some sessions' second turns, time and again until nobody dies any more."""
        own = sessions[person::NUM_PEOPLE]
        is_right = all(say(1, number) for number in own)
        while is_right and not is_over.is_set():
            is_right = all(say(1, number) for number in own)
        return is_right

    sessions = range(NUM_SESSIONS)
    is_over = Event()
    with ThreadPoolExecutor(NUM_PEOPLE) as people:
        plays = list(people.map(play, sessions))
        assert all(people.map(partial(say, 0), sessions))
        going_on = [people.submit(go_on, person) for person in range(NUM_PEOPLE)]
        try:
            wait_until(lambda: bool(blocks_at(cluster, "session-0")), "it is written down")
            ((host_id, _),) = blocks_at(cluster, "session-0").items()
            name = name_of(cluster, "kvstore", host_id)
            others = {child: pid for child, pid in cluster.pids().items() if child != name}
            is_back = partial(has_new_arena, host_id, set[tuple[int, int]]())
            for _ in range(NUM_KILLS):
                wait_until(is_back, "there is KV in it again")
                pid = cluster.kill(name)
            wait_until(is_back, "there is KV in it again")
        finally:
            is_over.set()
        assert all(going.result() for going in going_on)
        cluster.wait_restarted(name, pid)
        assert all(people.map(partial(say, 2), sessions))
    told = look(cluster.run)
    assert told is not None
    (store,) = [store for store in told.stores if store.host_id == host_id]
    assert store.staged_pages["arena"] + store.staged_pages["disk"] > 0
    assert store.num_corrupt == 0
    assert {child: pid for child, pid in cluster.pids().items() if child != name} == others


def test_a_host_dies_with_the_only_copy_of_one_session_and_in_mid_reply_of_another(
    cluster: Cluster, client: OpenAI
) -> None:
    """The one session's turn is fetching from that host when it dies; the other's runs there."""
    first, second, third = rehearse(client, "a", LONG, 10, 60, 10)
    (spoken,) = rehearse(client, "b", PROMPT, REPLY_TOKENS)
    num_blocks = (len(LONG) + len(first.tokens)) // BLOCK_TOKENS
    assert first.begin(client, KEPT).read_to_end() == first.tokens
    wait_until(lambda: sum(blocks_at(cluster, KEPT).values()) >= num_blocks, "it is known")
    ((dying, _),) = blocks_at(cluster, KEPT).items()

    reply = spoken.begin(client, "spoken")
    reply.read(5)
    assert hosts_at_work(cluster) == {dying}
    (left,) = {*hosts_of(cluster)} - {dying}
    pids = cluster.pids()
    dead = {name_of(cluster, "kvstore", dying), f"{name_of(cluster, 'worker', dying)}-0"}
    with arena_of(left) as arena, ThreadPoolExecutor(1) as other, nobody_is_restarted(cluster):
        num_before = count_pages(arena, PageState.READY)
        begun = other.submit(second.begin, client, KEPT)
        wait_until(
            lambda: count_pages(arena, PageState.READY) >= num_before + NUM_PAGES_COME,
            "history is coming",
        )
        assert hosts_at_work(cluster) == {dying, left}
        for name in dead:
            cluster.kill(name)
        assert count_pages(arena, PageState.FILLING), "it died too late"

        assert reply.read_to_end() == spoken.tokens
        kept = begun.result()
        assert kept.read_to_end() == second.tokens
        assert kept.cached_tokens < num_blocks * BLOCK_TOKENS  # the rest was computed
        again = third.begin(client, KEPT)
        assert again.read_to_end() == third.tokens
        assert again.cached_tokens >= num_blocks * BLOCK_TOKENS
        wait_until(lambda: not hosts_at_work(cluster), "nobody computes for nobody")
        assert {name for name, pid in pids.items() if not is_alive(pid)} == dead
