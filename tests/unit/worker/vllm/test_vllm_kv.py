"""The worker's part of KV below vLLM."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.worker import kv_client, vllm_kv
from services.worker.core.kv.staged import Staged
from services.worker.core.turns.history import PROMISE_UNKNOWN_NS
from services.worker.core.vllm import messages as m
from services.worker.core.vllm.replies import CachedTokens
from shared.blocks import BLOCK_TOKENS, child_key, pack_keys
from shared.errors import PeerUnavailable
from shared.runtime.clock import SystemClock
from shared.wire.messages import pack_ints, unpack_ints
from tests.unit.worker.vllm.kv_scene import KEYS, OWNER, RANKS, ROOT, TOKENS, scene_in, turn_of


def test_blocks_are_committed_when_every_rank_has_stored_its_part(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            opened = scene.scheduler.last(m.Opened)
            assert opened.num_pages == 4 and opened.epoch == scene.kv.kv.epoch == 1
            written: list[m.Write] = []
            scene.kv.on_write = written.append
            pages = await scene.lease(3)
            assert len(pages) == 12
            rows = [pages[:4], pages[4:8], pages[8:]]
            scene.copy(1, [0], rows[:1])  # before it was said what it is
            scene.order([scene.write(number, rows[number]) for number in range(3)])
            scene.copy(0, [0, 1], rows[:2])
            await scene.until(lambda: KEYS[0] in scene.kvstore.blocks)
            assert KEYS[1] not in scene.kvstore.blocks, "one rank has not stored it"
            assert scene.scheduler.last(m.WritesEnded) == m.WritesEnded(numbers=[0])
            scene.copy(1, [1], rows[1:2])
            scene.copy(0, [2], rows[2:])
            scene.ranks[1].say(m.Stored(rank=1, numbers=[2], checksums=[""]))
            await scene.until(lambda: KEYS[1] in scene.kvstore.blocks)
            await scene.until(
                lambda: (
                    scene.scheduler.last(m.WritesEnded) == m.WritesEnded(numbers=[2], unstored=[2])
                )
            )
            await scene.until(lambda: set(rows[2]) <= set(scene.kvstore.free))
            assert [write.number for write in written] == [0, 1]

    asyncio.run(scenario())


def test_what_the_kvstore_does_not_take_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            pages = await scene.lease(1)
            scene.order([replace(scene.write(0, pages), tokens=pack_ints([1]))])
            scene.kvstore.refuses = True
            for rank in range(RANKS):
                scene.copy(rank, [0], [pages])
            await scene.until(lambda: m.Refused(keys=pack_keys(KEYS[:1])) in scene.scheduler.heard)
            assert scene.kv.kv.is_connected

    asyncio.run(scenario())


def test_what_is_staged_is_the_requests_until_it_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            await scene.store([0, 1])
            kv = await scene.kv.stage(turn_of(), "a/1")
            assert (kv.name, kv.root, kv.num_asked) == ("a/1", ROOT.hex(), 3)
            assert kv.keys == pack_keys(KEYS) and kv.epoch == 1 and kv.ticket is not None
            assert (kv.ticket.num_blocks, kv.ticket.num_tokens) == (2, 2 * BLOCK_TOKENS)
            rows = [scene.kvstore.blocks[key] for key in KEYS[:2]]
            expected = [row[layer] for layer in range(4) for row in rows]
            assert unpack_ints(kv.ticket.pages) == expected and scene.kvstore.tickets
            scene.scheduler.say(m.TicketUsed(name="a/1", num_local=64, num_loaded=64))
            await scene.until(lambda: not scene.kvstore.tickets)
            assert scene.kv.take_cached("a/1") == CachedTokens(64, 64)
            assert scene.kv.take_cached("a/1") is None
            await scene.kv.stage(turn_of(), "a/2")
            scene.kv.end("a/2")
            await scene.until(lambda: not scene.kvstore.tickets)
            await scene.kv.stage(turn_of(), "a/2")
            scene.scheduler.say(m.StageWanted(name="a/2", keys=pack_keys(KEYS), num_before=0))
            await scene.until(lambda: isinstance(scene.scheduler.heard[-1], m.Staged))
            await scene.until(lambda: len(scene.kvstore.tickets) == 1)
            scene.kv.end("a/2")
            await scene.until(lambda: not scene.kvstore.tickets)
            scene.scheduler.heard.clear()
            private = await scene.kv.stage(turn_of(is_private=True), "a/3")
            assert private.ticket is None and private.is_private and not private.num_asked
            scene.scheduler.say(m.StageWanted(name="a/4", keys=pack_keys(KEYS[1:]), num_before=1))
            await scene.until(lambda: scene.scheduler.heard)
            ticket = scene.scheduler.last(m.Staged).ticket
            assert (ticket.num_before, ticket.num_tokens) == (1, 2 * BLOCK_TOKENS)
            scene.kv.end("a/4")
            scene.scheduler.say(m.StageWanted(name="a/5", keys=pack_keys(KEYS[2:]), num_before=2))
            await scene.until(lambda: scene.scheduler.heard[-1] == m.Staged(name="a/5"))
            await scene.until(lambda: not scene.kvstore.tickets)

    asyncio.run(scenario())


def test_a_tail_is_asked_for_where_tails_are_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = 2 * BLOCK_TOKENS + 9
        tail = child_key(KEYS[1], TOKENS[2 * BLOCK_TOKENS : history])
        turn = turn_of(history + 3, num_history=history)
        async with scene_in(tmp_path, token_rows=1) as scene:
            assert scene.scheduler.last(m.Opened).has_tails
            await scene.store([0, 1])
            scene.kvstore.blocks[tail] = scene.kvstore.blocks[KEYS[1]]
            kv = await scene.kv.stage(turn, "a/1")
            assert kv.ticket is not None
            assert (kv.num_asked, kv.ticket.num_blocks, kv.ticket.num_tokens) == (3, 3, history)

    asyncio.run(scenario())


def test_nothing_of_a_deleted_session_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            pages = await scene.lease(3)
            rows = [pages[:4], pages[4:8], pages[8:]]
            scene.order([scene.write(0, rows[0])])
            await asyncio.sleep(0)
            await scene.kv.forget(OWNER, [KEYS[0]])
            asked = m.Forget(owner=OWNER.hex(), keys=pack_keys(KEYS[:1]))
            assert asked in scene.scheduler.heard
            scene.order([scene.write(1, rows[1])])  # it was under way
            scene.scheduler.say(m.Forgotten(owner=OWNER.hex()))
            scene.order([scene.write(2, rows[2])])  # a turn that came later
            for rank in range(RANKS):
                scene.copy(rank, [0, 1, 2], rows)
            await scene.until(lambda: KEYS[2] in scene.kvstore.blocks)
            assert not {KEYS[0], KEYS[1]} & scene.kvstore.blocks.keys()
            assert scene.scheduler.last(m.WritesEnded).unstored == [0, 1]

    asyncio.run(scenario())


def test_a_new_kvstore_waits_until_no_rank_writes_for_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            slow = scene.ranks[1]
            slow.answers = False
            scene.scheduler.heard.clear()
            scene.kvstore.is_away = True
            await scene.kv.stage(turn_of(), "a/1")  # that finds it away
            assert not scene.kv.kv.is_connected
            assert scene.scheduler.last(m.Closed).epoch == 1
            scene.kvstore.is_away = False
            await scene.until(lambda: isinstance(slow.heard[-1], m.Closed))
            num_opened = scene.kvstore.num_opened
            await asyncio.sleep(0.05)
            assert scene.kvstore.num_opened == num_opened
            num_opened += 1
            slow.say(m.Detached(epoch=1))
            await scene.until(lambda: isinstance(slow.heard[-1], m.Opened))
            assert not any(isinstance(each, m.Opened) for each in scene.scheduler.heard)
            slow.say(m.Attached(epoch=1, error="of the last time"))
            slow.say(m.Attached(epoch=2))
            await scene.until(lambda: scene.kv.kv.is_connected)
            assert scene.scheduler.last(m.Opened).epoch == 2
            assert scene.kvstore.num_opened == num_opened

    asyncio.run(scenario())


def test_a_rank_that_cannot_use_the_arena_keeps_the_kvstore_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.ranks[0].error = "no such file"
            scene.kvstore.is_away = True
            await scene.kv.stage(turn_of(), "a/1")
            scene.kvstore.is_away = False
            await scene.until(lambda: scene.kvstore.num_opened >= 2)
            assert not scene.kv.kv.is_connected
            scene.ranks[0].error = ""
            await scene.until(lambda: scene.kv.kv.is_connected)

    asyncio.run(scenario())


def test_a_connector_that_is_gone_ends_the_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.ranks[0].gone.set()
            await scene.until(lambda: scene.gone)

    asyncio.run(scenario())


def test_speeds_and_failures_of_loads_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.ranks[0].say(m.LoadsMeasured(num_bytes=10**9, duration_ns=10**9, num_failed=2))
            await scene.until(lambda: scene.kv.num_load_failures == 2)
            assert scene.kv.estimates.load_bytes_per_s < 4e9

    asyncio.run(scenario())


def test_what_was_cached_is_kept_for_a_request_of_ours_until_it_ends(tmp_path: Path) -> None:
    """A stock vLLM's requests are staged because its connector asks; they end unseen."""

    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            await scene.store([0, 1])

            async def use(name: str) -> None:
                scene.scheduler.say(m.TicketUsed(name=name, num_local=64, num_loaded=64))
                await scene.until(lambda: not scene.kvstore.tickets)

            async def stage_again(name: str) -> None:
                scene.scheduler.heard.clear()
                scene.scheduler.say(m.StageWanted(name=name, keys=pack_keys(KEYS), num_before=0))
                await scene.until(lambda: scene.scheduler.heard)

            await scene.kv.stage(turn_of(), "a/1")
            await use("a/1")
            scene.kv.end("a/1")
            assert scene.kv.take_cached("a/1") is None
            await stage_again("a/1")
            await use("a/1")
            assert scene.kv.take_cached("a/1") is None
            scene.kv.cut("a/1", 5)
            assert scene.scheduler.heard[-1] == m.Cut(name="a/1", num_kept=5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("promised_ns", "found"),
    [(PROMISE_UNKNOWN_NS, {"host": 1, "disk": 1}), (PROMISE_UNKNOWN_NS + 1, {"host": 1})],
)
def test_blocks_that_may_come_at_any_time_are_not_waited_for(
    tmp_path: Path, promised_ns: int, found: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = Staged(
        ticket=7, keys=KEYS[:2], pages=[[0, 1]] * 4, generations=[[0, 0]] * 4, epoch=1,
        ready_in_ns=[promised_ns] * 4, num_here=1, coming_from="disk",
    )  # fmt: skip

    async def answer(_: object) -> Staged:
        return staged

    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            monkeypatch.setattr(scene.kv.kv, "stage_turn", answer)
            turn, now_ns = turn_of(), SystemClock().now_ns()
            ticket = (await scene.kv.stage(turn, "a/1")).ticket
            assert ticket is not None and ticket.num_blocks == sum(found.values())
            assert len(unpack_ints(ticket.pages)) == 4 * ticket.num_blocks
            ready_at_ns = [at_ns >= now_ns + promised_ns for at_ns in ticket.ready_at_ns]
            assert ready_at_ns == ([True] * 4 if "disk" in found else [])
            assert {place: turn.cache.found[place] for place in found} == found  # type: ignore[index]

    asyncio.run(scenario())


def test_nothing_found_and_an_answer_that_is_too_late_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            assert (await scene.kv.stage(turn_of(), "a/1")).ticket is None
            await scene.until(lambda: not scene.kvstore.tickets)
            await scene.store([0])
            stage_turn, can_answer = scene.kv.kv.stage_turn, asyncio.Event()

            async def answer(effect: Any) -> Staged | None:
                staged = await stage_turn(effect)
                await can_answer.wait()
                return staged

            monkeypatch.setattr(scene.kv.kv, "stage_turn", answer)
            monkeypatch.setattr(vllm_kv, "STAGE_PATIENCE_S", 0.01)
            assert (await scene.kv.stage(turn_of(), "a/2")).ticket is None
            assert scene.kvstore.tickets
            can_answer.set()
            await scene.until(lambda: not scene.kvstore.tickets)

    asyncio.run(scenario())


def test_a_commit_under_way_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            commit, can_commit = scene.kv.kv.commit, asyncio.Event()

            async def slow(*args: Any) -> AsyncIterator[Any]:
                await can_commit.wait()
                async for answer in commit(*args):
                    yield answer

            monkeypatch.setattr(scene.kv.kv, "commit", slow)
            pages = await scene.lease(1)
            scene.order([scene.write(0, pages)])
            for rank in range(RANKS):
                scene.copy(rank, [0], [pages])
            await scene.until(lambda: m.WritesEnded(numbers=[0]) in scene.scheduler.heard)
            with monkeypatch.context() as patch:
                patch.setattr(vllm_kv, "COMMITS_PATIENCE_S", 0.01)
                with pytest.raises(PeerUnavailable, match="commit"):
                    await scene.kv.forget(OWNER, [])
            draining = asyncio.ensure_future(scene.kv.drain())
            await asyncio.sleep(0)
            assert not draining.done()
            can_commit.set()
            await draining
            assert KEYS[0] in scene.kvstore.blocks

    asyncio.run(scenario())


def test_what_is_of_a_lost_connection_is_neither_committed_nor_given_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            pages = await scene.lease(2)
            rows = [pages[:4], pages[4:]]
            scene.order([scene.write(number, rows[number]) for number in range(2)])
            slow, heard = scene.ranks[1], scene.scheduler.heard
            slow.answers = False
            await scene.lose()
            await scene.until(lambda: isinstance(slow.heard[-1], m.Closed))
            for number in range(2):  # while there is no connection; on the next one
                for rank in range(RANKS):
                    scene.copy(rank, [number], [rows[number]])
                ended = m.WritesEnded(numbers=[number], unstored=[number])
                await scene.until(partial(heard.__contains__, ended))
                assert scene.kv.kv.epoch == 1 + number
                if not number:
                    slow.answers = True
                    slow.answer(m.Closed(epoch=1))
                    await scene.until(lambda: scene.kv.kv.is_connected)
            await scene.kv.drain()
            scene.scheduler.say(m.LeaseWanted(epoch=1, num_blocks=1))
            await scene.lease(1)
            assert [each.epoch for each in scene.scheduler.heard] == [2]
            assert not scene.kvstore.blocks and not set(pages) & set(scene.kvstore.free)

    asyncio.run(scenario())


def test_a_lost_connections_ticket_is_not_released_on_the_next(tmp_path: Path) -> None:
    """There the number may be another request's."""

    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            await scene.store([0])
            await scene.kv.stage(turn_of(), "a/1")
            await scene.lose()
            await scene.until(lambda: scene.kv.kv.is_connected)
            scene.kvstore.tickets.clear()
            scene.kvstore._last_ticket -= 1
            await scene.kv.stage(turn_of(), "a/2")
            scene.kv.end("a/1")
            await scene.lease(1)  # which is asked for later
            assert len(scene.kvstore.tickets) == 1

    asyncio.run(scenario())


def test_a_rank_that_says_nothing_keeps_the_kvstore_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_client, "RETRY_S", 0.01)

    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            monkeypatch.setattr(vllm_kv, "RANKS_PATIENCE_S", 0.01)
            rank, num_opened = scene.ranks[0], scene.kvstore.num_opened
            rank.answers = False
            rank.heard.clear()
            await scene.lose()
            await scene.until(lambda: len(rank.heard) == 3)
            assert rank.heard == [m.Closed(epoch=1)] * 3
            assert scene.kvstore.num_opened == num_opened
            monkeypatch.setattr(vllm_kv, "RANKS_PATIENCE_S", 10.0)
            rank.answers = True
            await scene.until(lambda: scene.kv.kv.is_connected)

    asyncio.run(scenario())
