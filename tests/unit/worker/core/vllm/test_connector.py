"""The connector in vLLM's scheduler, under whatever vLLM, its ranks and the worker may do."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from services.worker.core.vllm import messages as m
from services.worker.core.vllm.connector import (
    ConnectorCore,
    LoadOrder,
    Scheduled,
    WorkerGone,
)
from services.worker.core.vllm.stores import StoreOrder
from shared.blocks import BLOCK_TOKENS, chain_keys, pack_keys
from shared.wire.messages import pack_ints
from tests.unit.worker.core.vllm.fake_scheduler import OWNERS, ROOT, FakePool, World

NUM_STEPS = 120
WEIGHTS = {
    "schedule": 12, "add": 3, "answer": 6, "store": 6, "load": 6, "abort": 1, "connect": 0.5,
    "lose": 1, "forget": 0.3,
}  # fmt: skip


def run(seed: int, *, has_tails: bool) -> World:
    """A while of anything, and then until all is over."""
    world = World(Random(seed), has_tails=has_tails)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    world.connect()
    for _ in range(NUM_STEPS):
        getattr(world, world.random.choices(names, weights)[0])()
    for _ in range(400):
        if not (world.requests or world.ordered or world.loads):
            break
        for name in ("answer", "load", "store", "schedule"):
            getattr(world, name)()
    world.schedule()
    while world.ordered:
        world.store()
    world.answer()
    return world


@pytest.mark.parametrize("has_tails", [False, True])
def test_whatever_happens_kv_is_right_and_everything_is_given_back(has_tails: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(80):
        world = run(seed, has_tails=has_tails)
        assert not world.requests, (seed, "a request waits for ever")
        assert not any(world.pool.touched), (seed, "a block is held for ever")
        assert world.pool.refs == [1] + [0] * (world.pool.num_blocks - 1)
        assert not world.tickets, (seed, "a ticket is held for ever")
        assert not world.core.num_requests
        for name in ("loaded", "stored", "preempted", "failed", "again"):
            seen[name] += getattr(world, f"num_{name}")
    assert min(seen.values()) > 20, seen


TOKENS = list(range(3 * BLOCK_TOKENS + 1))
KEYS = chain_keys(ROOT, TOKENS)


class Scene:
    """A connector with a kvstore and pages, and what it sends."""

    def __init__(self, num_leased: int = 50) -> None:
        self.pool = FakePool()
        self.sent: list[m.FromConnector] = []
        self.core = ConnectorCore(self.pool, self.sent.append)
        self.open(1, num_leased)

    def open(self, epoch: int, num_leased: int = 50) -> None:
        self.core.on_message(
            m.Opened(epoch=epoch, arena_path="", lease_path="", num_pages=1, has_tails=False)
        )
        self.core.on_message(m.Leased(epoch=epoch, pages=pack_ints(range(num_leased))))

    def add(self, name: str, num_staged: int = 0, *, epoch: int = 1, num_asked: int = 3) -> None:
        pages = range(num_staged)
        ticket = m.Ticket(
            epoch=epoch, num_blocks=num_staged, num_tokens=num_staged * BLOCK_TOKENS,
            pages=pack_ints(pages), generations=pack_ints(pages, "Q"),
        )  # fmt: skip
        kv = m.RequestKv(
            name=name, root=ROOT.hex(), owner=OWNERS[0], epoch=epoch, num_asked=num_asked,
            keys=pack_keys(KEYS), ticket=ticket if num_staged else None,
        )  # fmt: skip
        self.core.on_request(name, kv)

    def match(self, name: str, *, was_preempted: bool = False, now_ns: int = 0) -> int | None:
        return self.core.match(name, TOKENS, 0, now_ns, was_preempted=was_preempted)

    def allocate(self, name: str, blocks: list[int], num_external: int = 0) -> None:
        for block in blocks:
            self.pool.refs[block] = 1
        self.core.on_allocated(name, blocks, num_external)

    def step(
        self, name: str, num_blocks: int, tokens: list[int] | None = None
    ) -> tuple[list[LoadOrder], list[StoreOrder]]:
        """A step that computes so many blocks of a request."""
        end = num_blocks * BLOCK_TOKENS
        each = Scheduled(request_id=name, tokens=tokens or TOKENS, end=end)
        return self.core.plan([each], 0)

    def said(self, kind: type) -> list[m.FromConnector]:
        return [each for each in self.sent if isinstance(each, kind)]


def test_what_is_below_is_not_stored_again_and_what_is_not_is() -> None:
    scene = Scene()
    scene.add("a")
    scene.allocate("a", [1, 2, 3])
    _, orders = scene.step("a", 2)
    assert [order.block for order in orders] == [1, 2] and scene.pool.touched[1] == 1
    numbers = [order.number for order in orders]
    scene.core.on_message(m.WritesEnded(numbers=numbers, unstored=numbers[1:]))
    assert not any(scene.pool.touched)
    scene.add("b", num_staged=1, num_asked=1)
    scene.allocate("b", [1, 2, 4])
    _, orders = scene.step("b", 3)
    assert [order.block for order in orders] == [2, 4], "the second was not stored"
    scene.core.on_message(m.WritesEnded(numbers=[order.number for order in orders]))
    scene.core.on_message(m.Refused(keys=pack_keys(KEYS[1:2])))
    scene.add("c", num_staged=0, num_asked=1)
    scene.allocate("c", [1, 2, 4])
    _, orders = scene.step("c", 3)
    assert [order.block for order in orders] == [1, 2], "the kvstore has neither"
    scene.core.on_message(m.WritesEnded(numbers=[order.number for order in orders]))
    scene.open(2)
    scene.add("d", num_asked=0)
    scene.allocate("d", [1, 2, 4])
    _, orders = scene.step("d", 3)
    assert [order.block for order in orders] == [1, 2, 4], "of another kvstore nothing is known"


def test_without_pages_a_block_waits_for_them() -> None:
    scene = Scene(num_leased=1)
    scene.add("a")
    scene.allocate("a", [1, 2, 3])
    assert [order.block for order in scene.step("a", 3)[1]] == [1]
    scene.core.on_finished("a", TOKENS, 3 * BLOCK_TOKENS, [1, 2, 3])
    assert sum(scene.pool.touched) == 3, "they are held after their request"
    scene.core.on_message(m.Leased(epoch=0, pages=pack_ints([9])))
    assert not scene.core.plan([], 10**9)[1], "those are another kvstore's"
    assert len(scene.said(m.LeaseWanted)) == 2, "when it was opened, and when one was left"
    scene.core.on_message(m.Leased(epoch=1, pages=pack_ints([7])))
    assert [order.block for order in scene.core.plan([], 10**9)[1]] == [2]
    scene.core.on_message(m.Leased(epoch=1, pages=""))
    assert sum(scene.pool.touched) == 2 and scene.core.plan([], 0)[1] == [], "there is no room"


def test_what_was_not_ordered_when_the_kvstore_left_is_let_go() -> None:
    scene = Scene()
    scene.add("a")
    scene.allocate("a", [1, 2, 3])
    scene.core.on_finished("a", TOKENS, 3 * BLOCK_TOKENS, [1, 2, 3])
    assert sum(scene.pool.touched) == 3
    scene.core.on_message(m.Closed(epoch=1))
    assert not any(scene.pool.touched)
    assert scene.core.plan([], 0) == ([], []) and not scene.said(m.Writes)


def test_without_a_worker_blocks_are_let_go_when_no_rank_can_read_them() -> None:
    scene = Scene()
    scene.add("a")
    scene.allocate("a", [1, 2, 3])
    scene.step("a", 3)
    scene.core.on_message(WorkerGone())
    assert scene.core.plan([], 0) == ([], []) and sum(scene.pool.touched) == 3
    scene.core.plan([], 29 * 10**9)
    assert sum(scene.pool.touched) == 3
    scene.core.plan([], 30 * 10**9)
    assert not any(scene.pool.touched)


def test_a_request_of_which_nobody_has_asked_asks_itself() -> None:
    scene = Scene()
    kv = m.RequestKv(name="a", root=ROOT.hex(), owner=OWNERS[0], must_ask=True)
    scene.core.on_request("x", kv)
    assert scene.match("x") is None
    assert scene.said(m.StageWanted) == [
        m.StageWanted(name="a", keys=pack_keys(KEYS), num_before=0)
    ]
    ticket = m.Ticket(
        epoch=1, num_blocks=2, num_tokens=2 * BLOCK_TOKENS, pages=pack_ints([5, 6]),
        generations=pack_ints([0, 0], "Q"),
    )  # fmt: skip
    scene.core.on_message(m.Staged(name="a", ticket=ticket))
    assert scene.match("x") == 2 * BLOCK_TOKENS
    scene.allocate("x", [1, 2], 2 * BLOCK_TOKENS)
    scene.core.on_loaded(["x"], set())
    scene.allocate("x", [1, 2, 3])
    _, orders = scene.step("x", 3)
    assert [order.block for order in orders] == [3]
    scene.core.on_request("y", replace(kv, name="b"))
    assert scene.match("y") is None
    assert scene.match("y", now_ns=10**9) == 0


def test_nothing_of_an_aborted_load_is_stored() -> None:
    scene = Scene()
    scene.add("a", num_staged=2, num_asked=2)
    assert scene.match("a") == 2 * BLOCK_TOKENS
    scene.allocate("a", [1, 2], 2 * BLOCK_TOKENS)
    scene.core.on_message(m.Refused(keys=pack_keys(KEYS)))  # else it were below anyway
    scene.core.on_finished("a", TOKENS, 2 * BLOCK_TOKENS, [1, 2])
    loads, orders = scene.core.plan([], 0)
    assert loads and not orders and scene.said(m.TicketUsed)


def test_a_ticket_is_of_use_in_its_epoch_and_leaves_a_token_to_compute() -> None:
    scene = Scene()
    scene.add("old", num_staged=2, epoch=0)
    assert scene.match("old") == 0
    scene.add("all", num_staged=4)
    assert scene.match("all") == len(TOKENS) - 1
    assert scene.core.match("unknown", TOKENS, 0, 0, was_preempted=False) == 0


def test_a_load_that_fails_is_counted_and_not_asked_for_again() -> None:
    scene = Scene()
    scene.add("a", num_staged=3)
    assert scene.match("a") == 3 * BLOCK_TOKENS
    scene.allocate("a", [1, 2, 3], 3 * BLOCK_TOKENS)
    (load,), _ = scene.core.plan([], 0)
    assert load.blocks == [1, 2, 3] and load.pages == [[0, 1, 2]]
    scene.core.on_loaded([], {2})
    scene.core.on_loaded(["a"], set())
    assert scene.said(m.TicketUsed) == [m.TicketUsed(name="a", num_loaded=BLOCK_TOKENS)]
    _, orders = scene.step("a", 3)
    assert [order.block for order in orders] == [2, 3], "it is not below after all"
    assert scene.match("a", was_preempted=True) == 0 and not scene.said(m.StageWanted)


def test_a_preempted_request_asks_once_and_waits_no_longer_than_a_second() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.add(name)
        scene.allocate(name, [1, 2, 3])
        scene.step(name, 3)
        assert scene.match(name, was_preempted=True) is None
    assert scene.match("a", was_preempted=True, now_ns=10**9) == 0
    ticket = m.Ticket(
        epoch=1, num_blocks=2, num_tokens=2 * BLOCK_TOKENS, pages=pack_ints([5, 6]),
        generations=pack_ints([0, 0], "Q"),
    )  # fmt: skip
    for name in ("a", "b"):
        scene.core.on_message(m.Staged(name=name, ticket=ticket))
    assert scene.match("b", was_preempted=True) == 2 * BLOCK_TOKENS
    assert scene.said(m.TicketUsed) == [m.TicketUsed(name="a")], "it came too late"
    assert len(scene.said(m.StageWanted)) == 2


def test_a_deleted_sessions_requests_are_found_by_no_other_and_stored_no_more() -> None:
    scene = Scene()
    scene.add("a")
    scene.allocate("a", [1, 2, 3])
    scene.step("a", 1)
    scene.pool.cached = {100: 1}
    scene.core.on_message(m.Forget(owner=OWNERS[0], keys=""))
    assert not scene.pool.cached and scene.said(m.Forgotten) == [m.Forgotten(owner=OWNERS[0])]
    scene.pool.cached = {101: 2, 102: 4}
    _, orders = scene.step("a", 2)
    assert not orders and scene.pool.cached == {102: 4}
    scene.core.on_finished("a", TOKENS, 3 * BLOCK_TOKENS, [1, 2, 3])
    assert not scene.core.plan([], 0)[1]
    scene.core.on_message(m.Forget(owner=OWNERS[1], keys=pack_keys(KEYS[:2])))


def test_a_request_that_was_cut_leaves_what_its_next_turn_begins_with() -> None:
    scene = Scene()
    scene.add("a")
    scene.allocate("a", [1, 2, 3])
    scene.core.on_message(m.Cut(name="a", num_kept=BLOCK_TOKENS + 5))
    scene.core.on_finished("a", TOKENS, 3 * BLOCK_TOKENS, [1, 2, 3])
    assert [order.block for order in scene.core.plan([], 0)[1]] == [1]
