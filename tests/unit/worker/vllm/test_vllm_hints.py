"""Announced turns on vLLM: what is held for them, and what is brought into vLLM's cache."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.worker import vllm_hints
from services.worker.core.effects import Effect, Prefetched
from services.worker.core.kv.expecting import Expected
from services.worker.core.vllm.histories import Histories, SessionTokens
from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import LOWEST_PRIORITY
from services.worker.vllm.protocol import EngineGone
from services.worker.vllm_hints import VllmHints
from shared.blocks import BLOCK_TOKENS
from shared.ids import SessionId, TenantId
from shared.owners import NO_OWNER, owner_key
from shared.runtime.clock import SystemClock
from tests.unit.worker.vllm.fake_engine import FakeEngine
from tests.unit.worker.vllm.kv_scene import INFO, KEYS, OWNER, ROOT, SESSION, TENANT, TOKENS, Scene
from tests.unit.worker.vllm.kv_scene import scene_in as kv_scene_in

SECOND = 10**9
ENDED = Output(tokens=[1], finish="length")


@dataclass
class HintScene:
    kv: Scene
    engine: FakeEngine
    hints: VllmHints
    effects: list[Effect]
    has_waiting: bool = False

    def announce(self, *, in_s: float = 0.0, session: SessionId = SESSION, **more: Any) -> None:
        now_ns = SystemClock().now_ns()
        self.hints.on_announced(
            Expected(
                tenant=TENANT,
                session_id=session,
                priority=1,
                trace="t",
                expires_at_ns=now_ns + 60 * SECOND,
                arrives_at_ns=now_ns + int(in_s * SECOND) if in_s else 0,
                **more,
            )
        )

    def remember(self, root: bytes = ROOT, tokens: list[int] = TOKENS) -> None:
        session = SessionTokens(array("i", tokens), "salt", root.hex())
        self.hints.histories.set(OWNER, session)

    async def outcome(self) -> tuple[int, int]:
        await self.kv.until(lambda: self.effects)
        found = self.effects.pop()
        assert isinstance(found, Prefetched)
        return found.num_staged, found.num_here


@asynccontextmanager
async def scene_in(folder: Path) -> AsyncIterator[HintScene]:
    async with kv_scene_in(folder) as kv:
        engine, effects = FakeEngine(INFO), list[Effect]()
        hints = VllmHints(engine, kv.kv, SystemClock(), lambda: scene.has_waiting, effects.extend)
        scene = HintScene(kv, engine, hints, effects)
        running = asyncio.ensure_future(hints.run())
        await kv.store([0, 1, 2])
        try:
            yield scene
        finally:
            running.cancel()


def test_history_comes_into_vllms_cache_and_is_held_below_until_the_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.remember()
            scene.engine.outputs.put_nowait(ENDED)
            scene.announce()
            assert await scene.outcome() == (3, 3)
            (request,) = scene.engine.asked
            assert request.tokens == TOKENS[: 3 * BLOCK_TOKENS + 1] and request.salt == "salt"
            assert request.args["max_tokens"] == 1 and request.priority == LOWEST_PRIORITY
            ticket = json.loads(request.kv)["ticket"]
            assert (ticket["num_blocks"], ticket["num_tokens"]) == (3, 3 * BLOCK_TOKENS)
            assert scene.kv.kvstore.tickets, "vLLM may drop it again"
            scene.hints.withdraw(OWNER)
            await scene.kv.until(lambda: not scene.kv.kvstore.tickets)
            assert not scene.engine.aborted

    asyncio.run(scenario())


def test_kv_of_other_tokens_or_another_adapter_does_not_come_into_vllms_cache(
    tmp_path: Path,
) -> None:
    """The session's last turn ran elsewhere: what is below is not what is known here."""

    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.engine.outputs.put_nowait(ENDED)
            scene.remember(root=bytes(len(ROOT)))
            scene.announce()
            assert await scene.outcome() == (3, 0) and not scene.engine.asked
            begin = TOKENS[:BLOCK_TOKENS]
            scene.remember(tokens=[*begin, *TOKENS])
            scene.announce()
            assert await scene.outcome() == (3, 1)
            (request,) = scene.engine.asked
            assert request.tokens[:-1] == begin

    asyncio.run(scenario())


@pytest.mark.parametrize("why", ["unknown", "waiting", "full", "busy", "gone"])
def test_without_room_it_stays_in_host_memory(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "busy":
        monkeypatch.setattr(vllm_hints, "REQUESTS_MAX", 0)

    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            if why != "unknown":
                scene.remember()
            scene.has_waiting = why == "waiting"
            scene.engine.counts.usage = 0.74 if why == "full" else 0.0  # and 3 blocks of 100
            scene.engine.outputs.put_nowait(EngineGone("it has ended"))
            scene.announce()
            assert await scene.outcome() == (3, 0)
            assert bool(scene.engine.asked) == (why == "gone") and scene.kv.kvstore.tickets

    asyncio.run(scenario())


def test_a_withdrawn_announcement_stops_what_it_began(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.remember()
            scene.announce()
            await scene.kv.until(lambda: scene.engine.asked)
            scene.hints.withdraw(OWNER)
            await scene.kv.until(lambda: scene.engine.aborted)
            scene.engine.outputs.put_nowait(ENDED)
            await scene.kv.until(lambda: not scene.kv.kvstore.tickets)
            scene.announce()
            scene.hints.forget(OWNER)
            await scene.kv.until(lambda: not scene.kv.kvstore.tickets)
            assert scene.hints.histories.get(OWNER) is None

    asyncio.run(scenario())


def test_a_far_turn_holds_nothing_until_it_is_near(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            num_asked = scene.kv.kvstore.num_asked
            scene.announce(in_s=3600)
            scene.announce(in_s=0.7)  # in place of the first
            assert scene.kv.kvstore.num_asked == num_asked
            assert await scene.outcome() == (3, 0)

    asyncio.run(scenario())


def test_a_second_announcement_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.remember()
            scene.announce()
            await scene.kv.until(lambda: scene.engine.asked)
            scene.announce()
            await scene.kv.until(lambda: len(scene.engine.asked) == 2)
            await scene.kv.until(lambda: len(scene.kv.kvstore.tickets) == 1)
            scene.engine.outputs.put_nowait(ENDED)  # the first one's
            assert await scene.outcome() == (3, 3)
            scene.hints.withdraw(OWNER)
            await scene.kv.until(lambda: len(scene.engine.aborted) == 2)
            assert scene.engine.aborted == [each.request_id for each in scene.engine.asked]

    asyncio.run(scenario())


def test_an_answer_for_a_withdrawn_announcement_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            staged, stage = list[Any](), scene.kv.kv.kv.stage_session

            async def note(question: Any) -> Any:
                staged.append(await stage(question))
                return staged[-1]

            monkeypatch.setattr(scene.kv.kv.kv, "stage_session", note)
            scene.announce()
            scene.hints.withdraw(OWNER)
            await scene.kv.until(lambda: staged and not scene.kv.kvstore.tickets)
            assert not scene.effects
            await scene.kv.lose()
            scene.announce()
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(staged) == 1, "there is no kvstore to ask"

    asyncio.run(scenario())


def test_a_lost_connections_ticket_is_not_released_on_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.announce()
            await scene.outcome()
            await scene.kv.lose()
            await scene.kv.until(lambda: scene.kv.kv.kv.is_connected)
            scene.hints.withdraw(OWNER)
            await scene.kv.lease(1)  # which is asked for later
            assert len(scene.kv.kvstore.tickets) == 1

    asyncio.run(scenario())


def test_what_loads_slowly_is_asked_for_early(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            num_bytes = 10 * INFO.num_layers * INFO.page_bytes
            scene.kv.kv.estimates.load_bytes_per_s = num_bytes / 1900
            scene.announce(in_s=3600, num_tokens=10 * BLOCK_TOKENS)
            assert await scene.outcome() == (3, 0)

    asyncio.run(scenario())


def test_what_is_held_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            now_ns = SystemClock().now_ns()
            scene.hints.on_announced(
                Expected(
                    tenant=TENANT,
                    session_id=SESSION,
                    priority=1,
                    trace="t",
                    expires_at_ns=now_ns + SECOND // 5,
                )
            )
            assert await scene.outcome() == (3, 0)
            assert scene.kv.kvstore.tickets
            await scene.kv.until(lambda: not scene.kv.kvstore.tickets)
            scene.announce(session=SessionId("unknown"))
            assert await scene.outcome() == (0, 0)
            await scene.kv.until(lambda: not scene.kv.kvstore.tickets)

    asyncio.run(scenario())


def test_one_tenant_does_not_fill_the_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            other = TenantId("other")
            scene.remember()
            shares, room = scene.hints._shares, scene.hints._shares.room(TENANT, OWNER)
            shares.take(TENANT, NO_OWNER, room - 1)
            assert shares.room(other, NO_OWNER)
            scene.engine.outputs.put_nowait(ENDED)
            scene.announce()
            await scene.outcome()
            assert len(scene.engine.asked[0].tokens) == BLOCK_TOKENS + 1 and not shares.room(
                TENANT, NO_OWNER
            )
            scene.announce(session=SessionId("other"), keys=tuple(KEYS))
            assert await scene.outcome() == (3, 0)
            await scene.kv.until(lambda: len(scene.kv.kvstore.tickets) == 1)
            scene.hints.withdraw(OWNER)
            assert shares.room(TENANT, OWNER) == 1

    asyncio.run(scenario())


def test_of_too_many_histories_the_oldest_go() -> None:
    histories = Histories(tokens_max=10)
    owners = [owner_key(TENANT, SessionId(str(at))) for at in range(4)]
    for at, owner in enumerate(owners):
        histories.set(owner, SessionTokens(array("i", [at] * 4), "", ""))
    assert [histories.get(owner) is not None for owner in owners] == [False, False, True, True]
    histories.set(owners[2], SessionTokens(array("i", [1] * 5), "", ""))
    histories.set(owners[0], SessionTokens(array("i", [1]), "", ""))
    assert [histories.get(owner) is not None for owner in owners] == [True, False, True, True]
    histories.drop(owners[1])
