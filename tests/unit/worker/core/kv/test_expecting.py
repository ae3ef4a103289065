"""Announced turns: what they need comes shortly before them, and holds nothing until then."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.worker.core.effects import Effect, LoadPages, ReleaseTicket, StageSession
from services.worker.core.kv.expecting import (
    ASK_AHEAD_NS,
    LEAD_FACTOR,
    STALE_MIN,
    UNKNOWN_MAX,
    WAITING_MAX,
)
from shared.hints import HINT_HOLD_NS, SHARE_OF_ONE
from shared.ids import DEFAULT_TENANT, HostId, SessionId, TenantId
from shared.owners import owner_key
from tests.unit.worker.driver import (
    MS,
    NUM_LAYERS,
    Engine,
    announce,
    keys_of,
    new_core,
    new_turn,
    of_kind,
    staged_blocks,
)

S, U = SessionId("s"), SessionId("u")
OWNER = owner_key(DEFAULT_TENANT, S)
SLOW = HostId("slow")
HOUR = 3_600_000 * MS
KEYS = keys_of(list(range(1, 9)))


@pytest.fixture
def engine() -> Engine:
    return connected(16)


def connected(num_blocks: int, max_model_len: int = 1000) -> Engine:
    engine = Engine(new_core(num_blocks, max_model_len=max_model_len))
    engine.core.write_behind.connect(1)
    return engine


def far(engine: Engine, session_id: SessionId = S, in_ns: int = HOUR, **fields: Any) -> None:
    arrives_at_ns = engine.now_ns + in_ns
    told = {"arrives_at_ns": arrives_at_ns, "expires_at_ns": arrives_at_ns + HOUR, **fields}
    assert announce(engine, session_id, **told) == []


def asked_at(engine: Engine, at_ns: int) -> list[StageSession]:
    engine.now_ns = at_ns
    return of_kind(engine.core.plan_step(at_ns)[1], StageSession)


def come(engine: Engine, ticket: int, asked: list[Effect], first_token: int = 1) -> list[Effect]:
    """The kvstore answers with two blocks; all that is loaded is good."""
    (ask,) = of_kind(asked, StageSession)
    staged = staged_blocks(ticket, keys_of([first_token, *range(2, 9)]))
    effects = engine.core.on_session_staged(ask.number, staged, engine.now_ns)
    engine.load_all(effects)
    return effects


def test_a_far_hint_asks_for_nothing_before_its_time(engine: Engine) -> None:
    far(engine, num_tokens=8)
    start_at_ns = engine.core.next_deadline_ns()
    assert start_at_ns is not None
    assert HOUR - 2 * ASK_AHEAD_NS < start_at_ns - engine.now_ns <= HOUR - ASK_AHEAD_NS
    assert asked_at(engine, start_at_ns - 1) == []
    (ask,) = asked_at(engine, start_at_ns)
    assert ask.session_id == S
    assert asked_at(engine, start_at_ns + 1) == [], "once"


def test_what_is_on_a_slow_hosts_disk_is_asked_for_earlier_and_by_its_place() -> None:
    starts = []
    for kv_at in ({}, {SLOW: 2}):
        engine = connected(16)
        num_bytes = 2 * NUM_LAYERS * engine.core.page_bytes
        engine.core.estimates.on_source(1e9, {SLOW: num_bytes / 10})
        far(engine, num_tokens=8, kv_at=kv_at)
        start_at_ns = engine.core.next_deadline_ns()
        assert start_at_ns is not None
        starts.append(start_at_ns)
        (ask,) = asked_at(engine, start_at_ns)
        assert ask.kv_at == kv_at
    assert starts[0] - starts[1] == pytest.approx(LEAD_FACTOR * 10_000 * MS, rel=0.01)


def test_more_takes_longer_to_come_and_what_is_not_known_is_long() -> None:
    starts = []
    for num_tokens in (8, 80_000, 0):
        engine = connected(16, max_model_len=10_000_000)
        far(engine, num_tokens=num_tokens)
        starts.append(engine.core.next_deadline_ns() or 0)
    assert starts[0] > starts[1] > starts[2]


def test_a_hint_for_any_time_or_for_soon_asks_at_once(engine: Engine) -> None:
    for arrives_at_ns in (0, engine.now_ns + ASK_AHEAD_NS):
        (ask,) = announce(engine, S, arrives_at_ns=arrives_at_ns, num_tokens=4)
        assert isinstance(ask, StageSession)


def test_the_latest_word_counts(engine: Engine) -> None:
    far(engine, num_tokens=8)
    far(engine, in_ns=2 * HOUR, num_tokens=8)
    assert asked_at(engine, engine.now_ns + HOUR) == []
    assert len(asked_at(engine, engine.now_ns + HOUR)) == 1
    far(engine, num_tokens=8)
    assert len(announce(engine, S)) == 1
    assert asked_at(engine, engine.now_ns + HOUR) == [], "it was asked for at once"


def test_nothing_is_asked_for_a_turn_that_is_here_or_is_not_coming(engine: Engine) -> None:
    far(engine, num_tokens=8)
    engine.submit(new_turn("t", [1, 2, 3], session_id=S))
    far(engine, U, num_tokens=8)
    assert engine.core.on_unexpected(owner_key(DEFAULT_TENANT, U)) == []
    assert asked_at(engine, engine.now_ns + HOUR) == []


def test_an_answer_for_what_is_not_coming_is_released(engine: Engine) -> None:
    (ask,) = announce(engine, S)
    assert isinstance(ask, StageSession)
    engine.core.on_unexpected(OWNER)
    answer = engine.core.on_session_staged(ask.number, staged_blocks(1, KEYS), engine.now_ns)
    assert answer == [ReleaseTicket(1)]


@pytest.mark.parametrize("is_taken_back", [False, True])
def test_what_was_brought_up_for_a_turn_that_is_not_coming_is_anybody_s(
    is_taken_back: bool,
) -> None:
    engine = connected(4)
    come(engine, 1, announce(engine, S))
    if is_taken_back:
        assert engine.core.on_unexpected(OWNER) == []
    num_blocks = 4 if is_taken_back else 2
    pages = engine.core.pool.take_idle(engine.now_ns, 4 * NUM_LAYERS, NUM_LAYERS - 1)
    assert len(pages) == num_blocks * NUM_LAYERS


def test_a_prefetch_that_is_called_back_starts_no_more_loads() -> None:
    engine = Engine(new_core(3))
    engine.submit(new_turn("u", list(range(1, 11))))
    engine.step()  # what it runs on leaves no room
    engine.core.write_behind.connect(1)
    (ask,) = announce(engine, U)
    assert isinstance(ask, StageSession)
    staged = staged_blocks(1, keys_of(list(range(11, 15))))
    effects = engine.core.on_session_staged(ask.number, staged, engine.now_ns)
    assert not of_kind(effects, LoadPages)
    owner = owner_key(DEFAULT_TENANT, U)
    assert engine.core.on_unexpected(owner) == [ReleaseTicket(1)]


def test_a_session_that_is_announced_again_has_one_hint(engine: Engine) -> None:
    first = come(engine, 1, announce(engine, S))
    second = come(engine, 2, announce(engine, S))
    assert of_kind(first, LoadPages) and not of_kind(second, LoadPages)
    assert len(engine.core.stager.hints.take_all(OWNER)) == 1
    assert engine.core.stager.hints.take_all(OWNER) == []


def test_hints_of_one_tenant_leave_room_for_others_and_all_of_them_for_turns() -> None:
    """Of ten blocks six for one tenant, eight for all; each hint has two."""
    engine = connected(10)
    kept = []
    for ticket, name in enumerate("aaaabbcc", 1):
        asked = announce(engine, SessionId(f"s{ticket}"), tenant=TenantId(name))
        effects = come(engine, ticket, asked, first_token=ticket)
        if of_kind(effects, LoadPages):
            kept.append(name)
        else:
            assert effects == [ReleaseTicket(ticket)]
    assert "".join(kept) == "aaab"
    engine.now_ns += 1000 * MS  # they are over
    late = TenantId("c"), SessionId("late")
    come(engine, 9, announce(engine, late[1], tenant=late[0]), first_token=9)
    assert engine.core.stager.hints.take_all(owner_key(*late))


def test_a_turn_that_is_here_makes_room_for_others_hints() -> None:
    engine = connected(4)
    come(engine, 1, announce(engine, S))
    engine.submit(new_turn("t", [1, 2, 3], session_id=S))
    come(engine, 2, announce(engine, U), first_token=2)
    assert engine.core.stager.hints.take_all(owner_key(DEFAULT_TENANT, U))


def test_nothing_is_held_long_after_a_turn_was_expected() -> None:
    """However long its advisory lives."""
    engine = connected(4)
    come(engine, 1, announce(engine, S, expires_at_ns=engine.now_ns + 24 * HOUR))
    for passed_ns, num_blocks in ((HINT_HOLD_NS - 1, 2), (1, 4)):
        engine.now_ns += passed_ns
        pages = engine.core.pool.take_idle(engine.now_ns, 4 * NUM_LAYERS, NUM_LAYERS - 1)
        assert len(pages) == num_blocks * NUM_LAYERS
        engine.core.pool.free_pages(np.array(pages, np.int32))


def test_what_was_kept_for_a_turn_and_is_not_needed_is_anybody_s() -> None:
    engine = connected(8)
    come(engine, 1, announce(engine, S), first_token=50)
    turn = new_turn("t", list(range(1, 9)), session_id=S)
    engine.submit(turn)  # another prompt than was expected
    assert (
        len(engine.core.pool.take_idle(engine.now_ns, 8 * NUM_LAYERS, NUM_LAYERS - 1))
        == 8 * NUM_LAYERS
    )


def test_invented_sessions_keep_none_that_has_kv_from_being_prefetched(engine: Engine) -> None:
    for number in range(WAITING_MAX + UNKNOWN_MAX):
        far(engine, SessionId(f"invented{number}"))
    known = ({"num_tokens": 8}, {"kv_at": {SLOW: 2}}, {"keys": tuple(KEYS)})
    for number in range(WAITING_MAX):
        far(engine, SessionId(f"s{number}"), **known[number % 3])
    asked = asked_at(engine, engine.now_ns + HOUR)
    assert len(asked) == WAITING_MAX + UNKNOWN_MAX
    assert sum(ask.session_id.startswith("s") for ask in asked) == WAITING_MAX


def test_what_waits_is_bounded(engine: Engine) -> None:
    for number in range(WAITING_MAX + 10):
        tenant = TenantId("ab"[number < WAITING_MAX * SHARE_OF_ONE + 10])
        far(engine, SessionId(f"s{number}"), num_tokens=8, tenant=tenant)
    waiting = engine.core.announcements.expecting._known
    assert waiting._num_of[TenantId("b")] == int(WAITING_MAX * SHARE_OF_ONE) + 1
    for number in range(WAITING_MAX):
        far(engine, SessionId(f"more{number}"), num_tokens=8, tenant=TenantId("c"))
    assert waiting.num_held == WAITING_MAX
    assert len(asked_at(engine, engine.now_ns + HOUR)) == WAITING_MAX
    for again in range(1000):
        far(engine, in_ns=HOUR + again, num_tokens=8)
    assert len(engine.core.announcements.expecting._due) <= STALE_MIN + 2
    assert waiting.num_held == 1


def test_an_agent_s_beginning_is_asked_for_by_its_keys_until_the_turn_is_here(
    engine: Engine,
) -> None:
    name = SessionId("#agent")
    asked = announce(engine, name, keys=tuple(KEYS))
    (ask,) = of_kind(asked, StageSession)
    assert ask.keys == tuple(KEYS)
    come(engine, 1, asked)
    assert engine.core.stager.hints.take_all(owner_key(DEFAULT_TENANT, name))
    come(engine, 2, announce(engine, name, keys=tuple(KEYS)))
    turn = new_turn("t", [*range(1, 9), 9], session_id=S)
    turn.request = replace(turn.request, announced_as=owner_key(DEFAULT_TENANT, name))
    engine.submit(turn)
    assert len(turn.cache.prefix.blocks) == 2, "they are found by what they are"
    hints = engine.core.stager.hints.take_all(owner_key(DEFAULT_TENANT, name))
    assert not hints, "and are nobody's hint any more"
