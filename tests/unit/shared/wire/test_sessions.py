"""Session records and their keys in Redis."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import MalformedMessage
from shared.ids import ModelId, SessionId, TenantId
from shared.locations import KV_HOSTS_KEY, location_redis_key
from shared.owners import owner_key
from shared.wire.sessions import (
    SessionRecord,
    TextMark,
    decode_record,
    encode_record,
    session_epoch_redis_key,
    session_redis_key,
    tombstone_redis_key,
)

RECORD = SessionRecord(
    session_id=SessionId("fox"),
    tenant=TenantId("team"),
    model_id=ModelId("m"),
    fingerprint="f",
    tokens="AAAAAA==",
    block_keys="",
    prompt=TextMark.of("Wer rät's? 🦊"),
    reply=TextMark.of("der Fuchs "),
    stripped_reply=TextMark.of("der Fuchs"),
    num_tokens=1,
    num_turns=1,
    last_used=1.5,
    expires=2.5,
)
NAMES = st.text(st.sampled_from("a:b1*"), min_size=1, max_size=6)


@given(tenants=st.tuples(NAMES, NAMES), sessions=st.tuples(NAMES, NAMES))
@settings(max_examples=200, deadline=None)
def test_no_two_sessions_share_a_key(tenants: tuple[str, str], sessions: tuple[str, str]) -> None:
    one, two = (
        session_redis_key(TenantId(tenant), SessionId(session))
        for tenant, session in zip(tenants, sessions, strict=True)
    )
    assert (one == two) == ((tenants[0], sessions[0]) == (tenants[1], sessions[1]))


def test_kinds_of_keys_do_not_meet() -> None:
    keys = {
        KV_HOSTS_KEY,
        location_redis_key(owner_key(TenantId("h"), SessionId("blocks"))),
        session_redis_key(TenantId("h"), SessionId("blocks")),
        session_epoch_redis_key(TenantId("h"), SessionId("blocks")),
        tombstone_redis_key(TenantId("h"), SessionId("blocks")),
    }
    assert keys == {
        "symphony:kv_hosts",
        "symphony:kv:9VDeeytOj4zgM-5HeE9IRw",
        "symphony:session:1:h:blocks",
        "symphony:generation:1:h:blocks",
        "symphony:tombstone:1:h:blocks",
    }


def test_a_record_comes_back_as_it_was() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    salted = replace(RECORD, cache_salt="s")
    assert decode_record(encode_record(salted)) == salted


def test_a_record_says_no_text() -> None:
    assert "rät" not in encode_record(RECORD).decode() and b"Fuchs" not in encode_record(RECORD)


@given(st.text(max_size=20), st.text(max_size=5), st.integers(0, 25))
@settings(max_examples=200, deadline=None)
def test_a_mark_knows_its_text_again(text: str, part: str, start: int) -> None:
    assert TextMark.of(part).is_at(text, start) == (
        start + len(part) <= len(text) and text.startswith(part, start)
    )


@pytest.mark.parametrize("data", [b"", b"{}", b'{"session_id": "fox"}', b"\x80"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(data)
