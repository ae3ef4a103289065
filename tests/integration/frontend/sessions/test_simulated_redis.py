"""The simulated Redis does what Redis does, for all that the session store asks of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from loadtest.sim.redis import MemoryRedis, RedisServer
from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.core.sessions.stored_responses import StoredResponse, new_response_id
from services.frontend.sessions import store
from services.frontend.sessions.redis import OpenRedis, redis_at
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import SessionStore
from services.kvstore.index.redis_index import SEND_LOCATIONS
from shared.ids import SessionId, TenantId
from shared.locations import KV_HOSTS_KEY, location_redis_key
from shared.owners import owner_key
from shared.randomness import take_from
from shared.runtime.clock import SystemClock
from tests.conftest import Server
from tests.integration.frontend.sessions.test_session_store import record

NUM_STEPS = 150
EXPIRY_S = 10_000_000  # a machine that stands still for minutes meanwhile lets nothing expire
TENANTS = (TenantId("a"), TenantId("b:c"), TenantId("\u00e9"))
NAMES = ("fox", "crow", "owl", "sum", "a:b")
FEW = TenantLimits(sessions=3, session_bytes=8000)

Execute = Callable[..., Awaitable[Any]]


async def history(open_redis: OpenRedis, execute: Execute) -> list[Any]:
    """What random requests are answered, and what is there in the end but for times."""
    random, sessions = Random(7), SessionStore(open_redis, SystemClock(), EXPIRY_S)
    responses = ResponseStore(sessions)
    answers: list[Any] = []
    # By session: counters of deletions begin with the second, so that those of two sessions are
    # equal or not by chance.
    words: dict[tuple[TenantId, SessionId], list[str]] = {}
    ids: list[str] = []
    for number in range(NUM_STEPS):
        tenant, session_id = random.choice(TENANTS), SessionId(random.choice(NAMES))
        known_words = words.setdefault((tenant, session_id), [""])
        word = random.choice(known_words[-3:])
        match random.randrange(6):
            case 0:
                known = await sessions.get(tenant, session_id)
                known_words.append(known.epoch)
                answers.append((known.record, known.epoch.split(" ")[0], known.kv_at))
            case 1:
                kept = replace(
                    record(session_id), tenant=tenant, num_turns=number,
                    tokens="t" * random.randrange(3000),
                )  # fmt: skip
                await sessions.put(kept, word, FEW)
            case 2:
                tombstone = await sessions.forget(tenant, session_id)
                answers.append(tombstone)
                if random.random() < 0.5:
                    await sessions.settle(tombstone)
            case 3:
                ids.append(new_response_id(session_id))
                before = random.choice([None, *ids[-3:-1]])
                head: dict[str, Any] = {"id": ids[-1], "previous_response_id": before}
                stored = StoredResponse(head, [{"text": "t" * random.randrange(500)}], [])
                which: Any = random.choice(["all", "begin", "rest"])
                is_kept = await responses.put(tenant, session_id, word, stored, FEW, which)
                answers.append(is_kept)
            case 4 if ids:
                answers.append(await _outcome(responses.past(tenant, ids[-1], lambda _: None)))
                answers.append(await _outcome(responses.drop(tenant, random.choice(ids))))
            case _:
                key = location_redis_key(owner_key(tenant, session_id))
                said = random.choice(["", "life 3"])
                arguments = (
                    KV_HOSTS_KEY,
                    key,
                    "host",
                    random.choice(["", "c"]),
                    "c",
                    EXPIRY_S,
                    said,
                )
                answers.append(await execute("EVAL", SEND_LOCATIONS, 2, *arguments))
    await sessions.close()
    answers.append(await _there(execute))
    return answers


async def _outcome(asked: Awaitable[Any]) -> Any:
    try:
        return await asked
    except Exception as error:
        return type(error).__name__


async def _there(execute: Execute) -> dict[Any, Any]:
    """Sizes of everything by its key."""
    found: dict[Any, Any] = {}
    for tenant in TENANTS:
        of = f"{len(tenant)}:{tenant}"
        found[tenant, "sizes"] = await execute("HGETALL", f"symphony:session_sizes:{of}")
        for kind in ("sessions", "notes"):
            found[tenant, kind] = await execute("ZRANGE", f"symphony:{kind}:{of}", 0, -1)
        found[tenant, "bytes"] = await execute("ZSCORE", "symphony:tenants", tenant)
        left_s = await execute("TTL", f"symphony:session_sizes:{of}")
        found[tenant, "expiry"] = round(left_s / EXPIRY_S)
        for name in NAMES:
            found[tenant, name] = await execute("STRLEN", f"symphony:session:{of}:{name}")
    return found


def test_it_answers_as_redis_does(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 60.0)  # a machine that stalls is no other answer
    memory = RedisServer(time.time_ns)

    async def scenario() -> None:
        redis = Redis.from_url(redis_server.url)
        take_from(Random(1).randbytes)
        theirs = await history(redis_at(redis_server.url), redis.execute_command)
        take_from(Random(1).randbytes)
        ours = await history(
            cast(OpenRedis, lambda _: MemoryRedis(memory)), MemoryRedis(memory).execute_command
        )
        await redis.aclose()
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert _plain(one) == _plain(other), f"answer {at}"

    try:
        asyncio.run(scenario())
    finally:
        take_from(None)


def _plain(answer: Any) -> Any:
    """Without the difference between a score as text and as a number."""
    if isinstance(answer, dict):
        return {name: _plain(value) for name, value in answer.items()}
    return float(answer) if isinstance(answer, bytes | float) and _is_number(answer) else answer


def _is_number(value: bytes | float) -> bool:
    return isinstance(value, float) or value.replace(b".", b"", 1).isdigit()


def test_a_full_one_refuses_writes_and_a_command_of_another_type() -> None:
    server = RedisServer(time.time_ns)
    server.execute("SET", "text", "1")
    for command in (("HGET", "text", "field"), ("SADD", "text", "member")):
        (answer,) = server.carry_out([command])
        assert isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer)
    server.takes_writes = False
    script = "redis.call('DEL', 'text') return redis.call('SET', 'text', '2')"
    refused, failed = server.carry_out([("SET", "text", "2"), ("EVAL", script, 0)])
    assert isinstance(refused, ResponseError) and isinstance(failed, ResponseError)
    assert server.names() == []
