"""Hints to the sidecar of a stock vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from services.worker.vllm_sidecar.api import BODY_BYTES_MAX, make_api
from services.worker.vllm_sidecar.hints import Hints, SessionKeys
from shared.blocks import BlockKey
from shared.ids import DEFAULT_TENANT, SessionId
from shared.owners import owner_key
from tests.unit.worker.vllm.kv_scene import KEYS, ROOT, Scene, scene_in

CHAT = SessionId("chat")
OWNER = owner_key(DEFAULT_TENANT, CHAT)


def test_a_sessions_blocks_are_those_of_its_latest_history() -> None:
    keys = SessionKeys()
    a, b, c, d = (BlockKey(bytes([at] * 16)) for at in range(4))
    for key, parent in ((a, ROOT), (b, a), (c, b)):
        keys.add(OWNER, key, parent)
    assert list(keys.of(OWNER)) == [a, b, c]
    keys.add(OWNER, d, a)
    assert list(keys.of(OWNER)) == [a, d], "it went on otherwise behind the first"
    keys.add(OWNER, c, ROOT)
    assert list(keys.of(OWNER)) == [c]


def test_of_too_many_sessions_the_oldest_are_forgotten() -> None:
    keys = SessionKeys(keys_max=4)
    owners = [owner_key(DEFAULT_TENANT, SessionId(str(at))) for at in range(3)]
    for owner in owners:
        for key, parent in ((KEYS[0], ROOT), (KEYS[1], KEYS[0])):
            keys.add(owner, key, parent)
    assert [len(keys.of(owner)) for owner in owners] == [0, 2, 2]


@asynccontextmanager
async def hints_in(folder: Path) -> AsyncIterator[tuple[Scene, Hints, httpx.AsyncClient]]:
    async with scene_in(folder) as scene:
        keys = SessionKeys()
        for key, parent in ((KEYS[0], ROOT), (KEYS[1], KEYS[0])):
            keys.add(OWNER, key, parent)
        hints = Hints(scene.kv.kv, keys, 100)
        await scene.store([0, 1])
        transport = httpx.ASGITransport(make_api(hints))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            yield scene, hints, client


def test_a_hint_holds_a_sessions_blocks_until_it_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hints_in(tmp_path) as (scene, hints, client):
            answer = await client.post("/v1/hints", json={"session_id": "chat"})
            assert (answer.status_code, answer.json()) == (202, {"blocks": 2})
            assert len(scene.kvstore.tickets) == 1
            short = {"session_id": "chat", "expires_in_s": 0.05}
            assert (await client.post("/v1/hints", json=short)).json() == {"blocks": 2}
            await scene.until(lambda: not scene.kvstore.tickets)
            unknown = await client.post("/v1/hints", json={"session_id": "other"})
            assert unknown.json() == {"blocks": 0}
            await client.post("/v1/hints", json={"session_id": "chat"})
            hints.withdraw(OWNER)
            await scene.until(lambda: not scene.kvstore.tickets)
            scene.kvstore.is_away = True
            away = await client.post("/v1/hints", json={"session_id": "chat"})
            assert away.json() == {"blocks": 0}
            assert (await client.get("/health")).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "JSON"), (b"{}", 400, "session_id"), (b'{"session_id": ""}', 400, "session_id"),
        (b'{"session_id": "a", "expires_in_s": 0}', 400, "expires_in_s"),
        (b'{"session_id": "a", "expires_in_s": 1e9}', 400, "expires_in_s"),
        (b'{"session_id": "' + b"a" * BODY_BYTES_MAX + b'"}', 413, "bytes"),
        (b'{"session_id": "' + b"a" * 300 + b'"}', 400, "session_id"),
    ],
)  # fmt: skip
def test_what_is_no_hint_is_refused_by_name(
    tmp_path: Path, body: bytes, status: int, word: str
) -> None:
    async def scenario() -> None:
        async with hints_in(tmp_path) as (_, _, client):
            answer = await client.post("/v1/hints", content=body)
            assert answer.status_code == status and word in answer.json()["error"]["message"]

    asyncio.run(scenario())
