"""What all prompts of an agent begin with: learned of its sessions, forgotten when it changes."""

import pytest

from services.tracker.core.agents import prefixes
from services.tracker.core.agents.prefixes import SESSIONS_MAX, AgentKey, AgentPrefixes
from shared.blocks import KEY_BYTES, PREFIX_BLOCKS_MAX, BlockKey, chain_keys
from shared.ids import DEFAULT_TENANT, ModelId, SessionId, TenantId
from shared.wire.messages import AdapterRef

WHO: AgentKey = (DEFAULT_TENANT, "coder")
M = ModelId("m")
SYSTEM = [1, 2, 3, 4]


def keys_of(*tokens: int) -> bytes:
    return b"".join(chain_keys(BlockKey(bytes(KEY_BYTES)), tokens, 1))


def learn(
    known: AgentPrefixes,
    session: str,
    *tokens: int,
    who: AgentKey = WHO,
    model: ModelId = M,
    adapter: AdapterRef | None = None,
) -> None:
    known.learn(who, SessionId(session), model, adapter, keys_of(*tokens))


def prefix(known: AgentPrefixes, who: AgentKey = WHO) -> bytes | None:
    found = known.of(who)
    return None if found is None else found.keys


def test_two_sessions_tell_what_all_begin_with() -> None:
    known = AgentPrefixes()
    learn(known, "s1", *SYSTEM, 8, 9)
    assert prefix(known) is None, "one session alone tells nothing"
    learn(known, "s1", *SYSTEM, 8, 9, 10)
    assert prefix(known) is None, "nor do its further turns"
    learn(known, "s2", *SYSTEM, 7)
    assert prefix(known) == keys_of(*SYSTEM)


@pytest.mark.parametrize("num_shared", [0, 1, 2, 3, 31, 32, 127, 128])
@pytest.mark.parametrize("num_own", [0, 1, 5])
def test_it_is_found_however_long_it_is(num_shared: int, num_own: int) -> None:
    known = AgentPrefixes()
    shared = range(num_shared)
    for number in range(4):
        own = [1000 + number] * (num_own + number)
        learn(known, f"s{number}", *shared, *own)
    learn(known, "odd", *range(500, 500 + num_shared + num_own))
    assert (prefix(known) or b"") == keys_of(*shared)[: PREFIX_BLOCKS_MAX * KEY_BYTES]


def test_one_session_that_begins_otherwise_changes_nothing() -> None:
    known = AgentPrefixes()
    for number in range(3):
        learn(known, f"s{number}", *SYSTEM, 10 + number)
    learn(known, "odd", 5, 6)
    learn(known, "empty")
    assert prefix(known) == keys_of(*SYSTEM)


def test_a_changed_system_prompt_takes_the_place_of_the_old_one() -> None:
    known = AgentPrefixes()
    for number in range(SESSIONS_MAX):
        learn(known, f"old{number}", *SYSTEM)
    for number in range(SESSIONS_MAX // 2 + 1):
        learn(known, f"new{number}", *SYSTEM, 6, 7)
    assert prefix(known) == keys_of(*SYSTEM, 6, 7)


def test_each_model_and_adapter_has_its_own_and_the_last_one_counts() -> None:
    known = AgentPrefixes()
    adapter = AdapterRef(adapter_hash="a", name="a", lora_rank=8)
    for session in ("s1", "s2"):
        learn(known, session, *SYSTEM)
        learn(known, f"{session}x", 5, 6, adapter=adapter)
    found = known.of(WHO)
    assert found is not None
    assert (found.adapter, found.keys) == (adapter, keys_of(5, 6))
    learn(known, "s1", *SYSTEM)
    found = known.of(WHO)
    assert found is not None
    assert (found.adapter, found.keys) == (None, keys_of(*SYSTEM))


def test_tenants_learn_nothing_from_each_other() -> None:
    known = AgentPrefixes()
    other = (TenantId("other"), WHO[1])
    learn(known, "s1", *SYSTEM)
    learn(known, "s2", *SYSTEM, who=other)
    assert prefix(known) is None
    assert prefix(known, other) is None


def test_everything_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "AGENTS_MAX", 4)
    known = AgentPrefixes()
    small = (TenantId("small"), "a")
    for session in ("s1", "s2"):
        learn(known, session, *SYSTEM, who=small)
    for number in range(20):
        for session in ("s1", "s2"):
            known.learn(
                (DEFAULT_TENANT, f"a{number}"), SessionId(session), ModelId(session), None, b""
            )
    assert len(known) == 4
    assert prefix(known, small) == keys_of(*SYSTEM), "who has many agents loses his own"
    for session in ("s1", "s2"):
        known.learn(WHO, SessionId(session), M, None, bytes(2 * PREFIX_BLOCKS_MAX * KEY_BYTES))
    assert len(prefix(known) or b"") == PREFIX_BLOCKS_MAX * KEY_BYTES
