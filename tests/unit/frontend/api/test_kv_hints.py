"""The envelope of KV hints that other servers' orchestrators send."""

from typing import Any

import orjson
import pytest

from services.frontend.api.bodies import kv_hints
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.kv_hints import DIRECTIVES_MAX, RETAIN_MS, KvHints, wishes_of
from services.frontend.api.bodies.text import ChatBody
from services.frontend.api.text.requests import chat_request
from services.frontend.http.request import Origin
from services.frontend.prepare.requests import Wish
from shared.errors import InvalidRequest
from shared.ids import SessionId

OWN = SessionId("own")


def action(kind: str, version: str = "1.0", **payload: Any) -> dict[str, Any]:
    return {"action_id": "a", "action_type": kind, "action_version": version, "payload": payload}


def envelope(*actions: dict[str, Any], protocol: str = "0.1") -> dict[str, Any]:
    return {"protocol_version": protocol, "message_id": "m", "actions": list(actions)}


def wishes(*actions: dict[str, Any], own: SessionId | None = OWN, **more: str) -> list[Wish]:
    return wishes_of(KvHints.model_validate(envelope(*actions, **more)), own)


def body(hints: Any) -> ChatBody:
    messages = [{"role": "user", "content": "hi"}]
    data = orjson.dumps({"model": "m", "messages": messages, "kv_hints": hints})
    found = parse(ChatBody, data)
    chat_request(found, Origin())
    return found


def test_four_actions_mean_something() -> None:
    found = wishes(
        action("kv.fetch", session_id="s", expected_arrival=2.5),
        action("kv.retain", duration=12),
        action("kv.demote", session_id="s"),
        action("release"),
    )
    told = [(w.action, w.session_id, w.is_own, w.is_wanted) for w in found]
    assert told == [
        ("fetch", "s", False, True),
        ("retain", "own", True, True),
        ("demote", "s", False, False),
        ("release", "own", True, False),
    ]
    assert [(w.expected_arrival, w.ttl_ms) for w in found] == [
        (2.5, None), (None, 12_000), (None, None), (None, None),
    ]  # fmt: skip


def test_what_is_let_go_of_need_not_be_kept_and_what_is_demoted_stays_below() -> None:
    gone = [{"priority": 0}]
    found = wishes(
        action("kv.retain", duration=12), action("release"), action("demote"),
        action("kv.retain", duration=9, directives=gone),
        action("kv.fetch", session_id="s", duration=5),
    )  # fmt: skip
    assert [(wish.lets_go, wish.duration_s) for wish in found] == [
        (False, 12.0), (True, 0.0), (False, 0.0), (True, 0.0), (False, 0.0),
    ]  # fmt: skip


def test_a_request_s_own_session_needs_no_fetch_for_its_turn_is_here() -> None:
    assert wishes(action("kv.fetch"), action("kv.fetch", session_id="own")) == []


def test_how_long_something_is_kept() -> None:
    directives = [{"start": 0, "priority": 9, "duration": 4.5}, {"priority": 1, "duration": 9}]
    plain, most, day = wishes(
        action("kv.retain"),
        action("kv.retain", directives=directives),
        action("kv.retain", duration=30 * 86_400),
    )
    assert [w.ttl_ms for w in (plain, most, day)] == [RETAIN_MS, 9000, 86_400_000]
    (let_go,) = wishes(action("kv.retain", directives=[{"priority": 0}]))
    assert not let_go.is_wanted and let_go.ttl_ms is None


@pytest.mark.parametrize(
    "unknown",
    [action("kv.share", session_id="s"), action("kv.fetch", "2.0", session_id="s")],
)
def test_what_is_unknown_is_ignored(unknown: dict[str, Any]) -> None:
    known = action("kv.fetch", session_id="s", block_hashes=[1], source_control_endpoint="tcp://x")
    assert [w.session_id for w in wishes(unknown, known)] == ["s"]
    assert wishes(known, protocol="0.2") == [] == wishes(action("kv.release"), own=None)


@pytest.mark.parametrize(
    ("hints", "param"),
    [
        ([], "kv_hints"),
        ({"message_id": "m"}, "kv_hints.protocol_version"),
        ({"protocol_version": "0.1", "message_id": 1}, "kv_hints.message_id"),
        (envelope() | {"actions": {}}, "kv_hints.actions"),
        (envelope() | {"actions": [{}] * 65}, "kv_hints.actions"),
        (envelope(action("kv.fetch") | {"action_type": 1}), "kv_hints.actions[0].action_type"),
        (envelope(action("kv.fetch") | {"payload": "x"}), "kv_hints.actions[0].payload"),
        (
            envelope(action("x"), action("kv.fetch", session_id=1)),
            "kv_hints.actions[1].payload.session_id",
        ),
        (envelope(action("kv.retain", duration=-1)), "kv_hints.actions[0].payload.duration"),
        (envelope(action("kv.retain", duration=True)), "kv_hints.actions[0].payload.duration"),
        (
            envelope(action("kv.retain", directives=[{"priority": "x"}])),
            "kv_hints.actions[0].payload.directives[0].priority",
        ),
        (envelope(action("kv.retain", directives=[1])), "kv_hints.actions[0].payload.directives"),
    ],
)
def test_a_malformed_envelope_is_refused_by_the_field_s_name(hints: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        body(hints)
    assert refusal.value.http_status == 400 and (refusal.value.param or "").startswith(param)
    assert param in refusal.value.message


def test_payloads_of_unknown_actions_may_be_anything() -> None:
    body(envelope(action("kv.share", session_id=1, duration="long")))
    assert body(None).kv_hints is None


def test_too_many_directives_are_refused_without_a_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = [{"priority": 1, "duration": 3}] * DIRECTIVES_MAX
    assert [w.ttl_ms for w in wishes(action("kv.retain", directives=kept))] == [3000]
    with pytest.raises(InvalidRequest, match="directives: give at most 64"):
        body(envelope(action("kv.retain", directives=[1] * (DIRECTIVES_MAX + 1))))
    names: list[str] = []
    made = kv_hints._Payload

    def payload(name: str, fields: Any) -> Any:
        names.append(name)
        return made(name, fields)

    monkeypatch.setattr(kv_hints, "_Payload", payload)
    wishes(action("kv.retain", directives=kept))
    assert names == ["kv_hints.actions[0].payload"], "names are made of what is wrong"


def test_who_says_nothing_of_a_priority_does_not_let_go() -> None:
    some: list[dict[str, int]] = [{"priority": 0}, {"duration": 5}]
    (nothing,) = wishes(action("kv.retain", directives=[{}]))
    (kept,) = wishes(action("kv.retain", directives=some))
    assert nothing.is_wanted and kept.is_wanted
