"""The worker's part of KV below vLLM."""

import asyncio
from dataclasses import replace
from pathlib import Path

from services.worker.core.vllm import messages as m
from services.worker.core.vllm.replies import CachedTokens
from shared.blocks import BLOCK_TOKENS, child_key, pack_keys
from shared.wire.messages import pack_ints, unpack_ints
from tests.unit.worker.vllm.kv_scene import KEYS, OWNER, RANKS, ROOT, TOKENS, scene_in, turn_of


def test_blocks_are_committed_when_every_rank_has_stored_its_part(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            opened = scene.scheduler.last(m.Opened)
            assert opened.num_pages == 4 and opened.epoch == scene.kv.kv.epoch == 1
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
            private = await scene.kv.stage(turn_of(is_private=True), "a/3")
            assert private.ticket is None and private.is_private and not private.num_asked
            scene.scheduler.say(m.StageWanted(name="a/4", keys=pack_keys(KEYS[1:]), num_before=1))
            await scene.until(lambda: isinstance(scene.scheduler.heard[-1], m.Staged))
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
            slow.say(m.Detached(epoch=1))
            await scene.until(lambda: isinstance(slow.heard[-1], m.Opened))
            assert not any(isinstance(each, m.Opened) for each in scene.scheduler.heard)
            slow.say(m.Attached(epoch=1))  # an old answer
            slow.say(m.Attached(epoch=2))
            await scene.until(lambda: scene.kv.kv.is_connected)
            assert scene.scheduler.last(m.Opened).epoch == 2

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
