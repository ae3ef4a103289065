"""vLLM's calls, as the connector's core takes them; vLLM's objects are made up."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.core.vllm import messages as m
from services.worker.core.vllm.connector import WorkerGone
from services.worker.core.vllm.request_kv import stock_kv, worker_kv
from services.worker.vllm.link import Connection, Listener, Peer
from services.worker.vllm.scheduler_side import Blocks, SchedulerSide
from shared.blocks import BLOCK_TOKENS, root_key
from shared.ids import DEFAULT_TENANT, SessionId
from shared.owners import NO_OWNER, owner_key
from shared.wire.messages import encode, pack_ints

TIMEOUT_S = 10
TOKENS = list(range(3 * BLOCK_TOKENS + 5))
ROOT = root_key("f", "t")


@dataclass
class FakeBlock:
    number: int
    num_refs: int = 1


@dataclass
class FakeBlockPool:
    """vLLM's, as far as it is used."""

    blocks: list[FakeBlock] = field(default_factory=lambda: [FakeBlock(at) for at in range(40)])
    evicted: set[int] = field(default_factory=set)

    def touch(self, blocks: list[FakeBlock]) -> None:
        for block in blocks:
            block.num_refs += 1

    def free_blocks(self, blocks: list[FakeBlock]) -> None:
        for block in blocks:
            block.num_refs -= 1

    def evict_blocks(self, blocks: set[int]) -> None:
        self.evicted |= blocks


def request(name: str, **more: Any) -> Any:
    kv = m.RequestKv(name=name, root=ROOT.hex(), owner="0a" * 16)
    return SimpleNamespace(
        **{
            "request_id": f"{name}-x",
            "kv_transfer_params": {m.PARAMS: encode(kv).decode()},
            "all_token_ids": TOKENS,
            "prompt_token_ids": TOKENS,
            "num_computed_tokens": 0,
            "lora_request": None,
            "mm_features": [],
            "cache_salt": None,
            **more,
        }
    )


def output(num_tokens: dict[str, int], **more: Any) -> Any:
    """A scheduled step."""
    nothing = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        **{
            "scheduled_new_reqs": [],
            "scheduled_cached_reqs": nothing,
            "num_scheduled_tokens": num_tokens,
            **more,
        }
    )


@contextmanager
def a_side(*, is_workers: bool, listener: Listener | None = None) -> Iterator[SchedulerSide]:
    listener = listener or Listener()
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
        model_config=SimpleNamespace(model="m"),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512),
    )
    made = SchedulerSide(listener.path, config, "0.32", is_workers=is_workers)
    made.bind(Blocks(FakeBlockPool()))
    yield made
    made.close()
    listener.close()


@pytest.fixture
def side() -> Iterator[SchedulerSide]:
    with a_side(is_workers=True) as made:
        made._inbox.put(m.Opened(epoch=1, arena_path="", lease_path="", num_pages=1))
        made._inbox.put(m.Leased(epoch=1, pages=pack_ints(range(20))))
        yield made


def test_blocks_are_those_that_vllm_gave_a_request_until_now(side: SchedulerSide) -> None:
    one = request("a")
    side.on_request(one)
    side.core_now.on_allocated(one.request_id, [4], 0)
    new = SimpleNamespace(req_id=one.request_id, block_ids=([4],))
    _, orders = side.plan(output({one.request_id: BLOCK_TOKENS}, scheduled_new_reqs=[new]))
    assert [order.block for order in orders] == [4]
    one.num_computed_tokens = BLOCK_TOKENS
    cached = SimpleNamespace(
        req_ids=[one.request_id], new_block_ids=[([5, 6],)], resumed_req_ids=set()
    )
    _, orders = side.plan(output({one.request_id: 2 * BLOCK_TOKENS}, scheduled_cached_reqs=cached))
    assert [order.block for order in orders] == [5, 6]
    one.num_computed_tokens = 3 * BLOCK_TOKENS
    cached = SimpleNamespace(req_ids=[one.request_id], new_block_ids=[None], resumed_req_ids=set())
    assert side.plan(output({one.request_id: 1}, scheduled_cached_reqs=cached)) == ([], [])
    side.on_finished(one, [4, 5, 6])
    assert side.core_now.num_requests == 0 and not side._requests
    assert side.plan(output({})) == ([], [])


def test_messages_count_before_vllms_next_call(side: SchedulerSide) -> None:
    one = request("a", num_computed_tokens=3 * BLOCK_TOKENS)
    side.on_request(one)
    side.core_now.on_allocated(one.request_id, [4, 5, 6], 0)
    side._inbox.put(m.Cut(name="a", num_kept=BLOCK_TOKENS + 1))
    side.on_finished(one, [4, 5, 6])
    _, orders = side.plan(output({}))
    assert [order.block for order in orders] == [4]
    side._inbox.put(m.Opened(epoch=2, arena_path="", lease_path="", num_pages=1))
    side._inbox.put(m.Closed(epoch=2))
    assert not side.core().stores.is_open


def test_blocks_are_vllms() -> None:
    pool = FakeBlockPool()
    blocks = Blocks(pool)
    assert blocks.num_blocks == 40
    blocks.touch([1, 2])
    blocks.free([2, 3])
    blocks.evict({5})
    assert [pool.blocks[at].num_refs for at in range(5)] == [1, 2, 1, 0, 1] and pool.evicted == {5}


def test_the_worker_is_asked_for_pages_for_two_steps_and_sees_the_end() -> None:
    listener = Listener()
    with a_side(is_workers=True, listener=listener) as side:
        for rank in (0, 1):
            Connection(listener.path, lambda _: None, lambda: None).send(m.Registered(rank=rank))
        peers = listener.accept()
        expected = m.Registered(rank=m.SCHEDULER, num_ranks=2, model="m", version="0.32")
        assert peers[0].registered == expected
        side._inbox.put(m.Opened(epoch=1, arena_path="", lease_path="", num_pages=1))
        side.core()
        said: list[object] = []

        def note(_: Peer, message: object) -> None:
            said.append(message)
            side.close()

        asyncio.run(asyncio.wait_for(peers[0].read(note), TIMEOUT_S))
        assert said == [m.LeaseWanted(epoch=1, num_blocks=10)]
        assert isinstance(side._inbox.get(timeout=TIMEOUT_S), WorkerGone)
        for peer in peers[1:]:
            peer.close()


def test_resumed_requests_have_other_blocks(side: SchedulerSide) -> None:
    one = request("a")
    side.on_request(one)
    side.core_now.on_allocated(one.request_id, [4], 0)
    cached = SimpleNamespace(
        req_ids=[one.request_id], new_block_ids=[([7, 8],)], resumed_req_ids={one.request_id}
    )
    _, orders = side.plan(output({one.request_id: 2 * BLOCK_TOKENS}, scheduled_cached_reqs=cached))
    assert [order.block for order in orders] == [7, 8]


@pytest.mark.parametrize("params", [None, {}, {m.PARAMS: "nonsense"}, {m.PARAMS: 3}])
def test_what_no_worker_speaks_for_is_left_alone(side: SchedulerSide, params: Any) -> None:
    one = request("a", kv_transfer_params=params)
    side.on_request(one)
    assert side.core_now.num_requests == 0
    assert side.plan(output({one.request_id: 200})) == ([], [])
    side.on_finished(one, [4])


def test_a_stock_servers_clients_cannot_speak_for_a_worker() -> None:
    with a_side(is_workers=False) as side:
        side.on_request(request("early"))
        assert side.core_now.num_requests == 0, "nothing is kept while the sidecar has no arena"
        opened = m.Opened(epoch=2, arena_path="", lease_path="", num_pages=1, fingerprint="f")
        side._inbox.put(opened)
        side.on_request(request("a"))
        assert side.core_now.match("a-x", TOKENS, 0, 0, was_preempted=False) is None, "it asks"


def test_a_stock_servers_request_is_named_by_its_tokens_and_salt() -> None:
    kv = stock_kv(request("a", cache_salt="s", kv_transfer_params=None), "f")
    assert kv is not None and kv.must_ask and kv.name == "a-x"
    assert kv.root == root_key("f", DEFAULT_TENANT, "", "s").hex() and kv.owner == NO_OWNER.hex()
    session = {"session_id": "chat"}
    kv = stock_kv(request("a", kv_transfer_params=session), "f")
    assert kv is not None and kv.owner == owner_key(DEFAULT_TENANT, SessionId("chat")).hex()
    for odd in ("", 7, "x" * 1000):
        kv = stock_kv(request("a", kv_transfer_params={"session_id": odd}), "f")
        assert kv is not None and kv.owner == NO_OWNER.hex()


@pytest.mark.parametrize(
    "more", [{"lora_request": object()}, {"mm_features": [1]}, {"prompt_token_ids": None}]
)
def test_what_tokens_do_not_name_is_not_kept(more: dict[str, Any]) -> None:
    assert stock_kv(request("a", **more), "f") is None


def test_a_workers_word_is_read_as_it_was_said() -> None:
    kv = worker_kv(request("a"))
    assert kv == m.RequestKv(name="a", root=ROOT.hex(), owner="0a" * 16)
