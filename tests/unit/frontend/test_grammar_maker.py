"""Grammars that strangers send, compiled where they can be ended."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from services.frontend.compiling.maker import LIMITS, RETRY_S, GrammarMaker
from services.frontend.core.limits.tenant_cache import ENTRY_BYTES, TenantCache
from services.frontend.core.replies.forms import Form
from services.frontend.core.structures import Kind, Structure
from shared.errors import InvalidRequest, NoCapacity
from shared.ids import TenantId
from shared.runtime.clock import SystemClock
from tests.integration.frontend.deployment import eventually

ALICE, BOB = TenantId("alice"), TenantId("bob")
PATIENT = replace(LIMITS, work_ns=60_000_000_000, wait_ns=120_000_000_000)
IMPATIENT = replace(LIMITS, work_ns=300_000_000)


def endless(name: str = "X") -> str:
    """Rules whose first token takes more steps than there are: intersections of long loops."""
    loops = " & ".join(f"/((.{{{n}}})*)/" for n in (2, 3, 5, 7, 11, 13, 17, 19, 23))
    return f"start: {name}\n{name}: {loops}"


def point(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"}}}


def form(kind: Kind, value: Any) -> Form:
    return Form(Structure("field.part", kind, value))


async def outcome(
    maker: GrammarMaker, tenant: TenantId, kind: Kind, value: Any, key: bytes | None = None
) -> str:
    key = repr((kind, value)).encode() if key is None else key
    try:
        await maker.make(tenant, key, form(kind, value), "field.part")
    except InvalidRequest as error:
        return f"{error.param} {error.code} {error.message}"
    except NoCapacity as error:
        return f"{error.http_status} {error.retry_after_s:g}"
    return ""


def run(scenario: Callable[[GrammarMaker], Awaitable[None]], limits: Any = PATIENT) -> None:
    async def whole() -> None:
        maker = GrammarMaker(SystemClock(), limits)
        try:
            await scenario(maker)
        finally:
            await maker.close()
        assert not maker.pids

    asyncio.run(whole())


def test_hostile_grammars_are_refused_and_end_nothing() -> None:
    """Chains that recurse deep, much of what is no grammar, GBNF, and huge counts."""
    links = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(3000)}
    chain = {"$ref": "#/$defs/a0", "$defs": {**links, "a3000": {"type": "null"}}}
    rules = "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(4000)) + 'a4000: "x"\n'
    gbnf = "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1}\n" for n in range(700)) + 'a700 ::= "x"\n'
    good: list[tuple[Kind, Any]] = [("json", chain), ("grammar", rules), ("grammar", gbnf)]
    refused: list[tuple[Kind, Any]] = [
        ("grammar", "\n" * 131_000 + "x"),
        ("grammar", "root ::= " + "r" * 100_000),
        ("regex", "((a{1000}){1000}){100}"),
        ("json", {"type": "integer", "multipleOf": 99_999_999}),
        ("json", {"allOf": [{"multipleOf": 99_991}, {"multipleOf": 99_989}]}),
        ("json", {"type": "object", "properties": {f"p{n}": {"const": n} for n in range(3000)}}),
        ("json", {"allOf": [{"anyOf": [point(f"{n}{m}") for m in range(4)]} for n in range(8)]}),
    ]  # fmt: skip

    async def scenario(maker: GrammarMaker) -> None:
        assert [await outcome(maker, BOB, *each) for each in good] == [""] * len(good)
        for each in refused:
            told = await outcome(maker, BOB, *each)
            assert told.startswith("field invalid_grammar field.part: "), each
            assert len(told) < 500
        assert len(maker.pids) == 1, "none of them ended it"

    run(scenario)


def test_a_tenant_whose_grammars_never_end_keeps_no_other_waiting() -> None:
    async def scenario(maker: GrammarMaker) -> None:
        names = ("X", "Y", "Z")
        hostile = [asyncio.create_task(outcome(maker, BOB, "grammar", endless(n))) for n in names]
        await asyncio.sleep(0)
        for number in range(3):
            assert await outcome(maker, ALICE, "json", {"const": number}) == ""
        assert not any(task.done() for task in hostile)
        for task in hostile:
            task.cancel()

    run(scenario)


def test_what_took_too_long_is_tried_again_and_not_remembered() -> None:
    async def scenario(maker: GrammarMaker) -> None:
        assert await outcome(maker, BOB, "grammar", endless(), b"key") == f"503 {RETRY_S:g}"
        assert await outcome(maker, BOB, "regex", "a+", b"key") == "", "the key has no verdict"

    run(scenario, IMPATIENT)


def test_what_ends_its_process_is_remembered_of_its_tenant_alone() -> None:
    """As what takes too much memory does."""

    async def scenario(maker: GrammarMaker) -> None:
        asked = asyncio.create_task(outcome(maker, BOB, "grammar", endless(), b"key"))
        await eventually(lambda: any(c.has_begun for c in maker._pool._crew._children))
        os.kill(maker.pids[0], signal.SIGABRT)
        told = await asked
        assert told.startswith("field invalid_grammar") and "MiB" in told
        assert await outcome(maker, BOB, "regex", "a", b"key") == told
        assert await outcome(maker, ALICE, "regex", "a", b"key") == ""

    run(scenario)


def test_many_who_ask_the_same_are_one_compile() -> None:
    async def scenario(maker: GrammarMaker) -> None:
        asked = [outcome(maker, ALICE, "json", {"const": 1}) for _ in range(200)]
        assert set(await asyncio.gather(*asked)) == {""}

    run(scenario)


@pytest.mark.slow
def test_memory_ends_a_compile() -> None:
    async def scenario(maker: GrammarMaker) -> None:
        told = await outcome(maker, BOB, "grammar", endless())
        assert "MiB" in told
        assert (
            await outcome(maker, BOB, "grammar", "nonsense", repr(("grammar", endless())).encode())
            == told
        )

    run(scenario)


def test_no_tenant_evicts_what_another_one_has() -> None:
    cache = TenantCache(4 * (ENTRY_BYTES + 4))
    cache.put("alice", b"k", "a")
    for number in range(50):
        cache.put("bob", b"%d" % number, "b")
    assert cache.get("alice", b"k") == "a" and cache.get("bob", b"46") is None
    assert [cache.get("bob", b"%d" % number) for number in (47, 48, 49)] == ["b"] * 3
    cache.get("bob", b"47")
    cache.put("carol", b"k", "c")
    assert cache.get("bob", b"48") is None and cache.get("bob", b"47") == "b"
    cache.put("bob", b"x", "b" * 1000)
    assert cache.get("bob", b"x") is None, "too much for any room"
    assert cache.get("alice", b"k") == "a"
