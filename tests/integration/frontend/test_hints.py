"""Advisories at a frontend: what reaches the tracker, and whose do not."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import HintsThrottled, InvalidRequest, TenantQuota
from shared.ids import FrontendId, HostId, SessionId, TenantId
from shared.wire import hint_accounts
from shared.wire import messages as m
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    HINTS_ENDED,
    SERVICE_STATUS,
    TENANT_ADVISORY_GET,
    TENANT_ADVISORY_INVALIDATE,
    TENANT_ADVISORY_SUBMIT,
)
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, deployment, eventually
from tests.integration.harness import eventually_answers

TENANT = TenantId("default")


@pytest.fixture(autouse=True)
def unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets do not fill by themselves, however slow this machine is."""
    monkeypatch.setattr(hint_accounts, "PLACE_PER_S", 1e-3)
    monkeypatch.setattr(hint_accounts, "TENANT_PER_S", 1e-3)


class Tracker:
    """Hears everything, and knows nothing."""

    def __init__(self) -> None:
        self.heard: list[m.Advisory] = []
        self.taken_back: list[str] = []

    async def serve(self, it: Deployment) -> None:
        await it.bus.serve(ADVISORY_SUBMIT, self._submit)
        await it.bus.serve(ADVISORY_INVALIDATE, self._invalidate)
        await it.bus.serve(ADVISORY_GET, self._get)
        await it.bus.flush()

    async def _submit(self, advisory: m.Advisory) -> m.AdvisoryState:
        self.heard.append(advisory)
        return m.AdvisoryState(session_id=advisory.session_id, state="placed")

    async def _invalidate(self, key: m.AdvisoryKey) -> m.AdvisoryState:
        self.taken_back.append(key.session_id)
        return m.AdvisoryState(session_id=key.session_id, state="invalidated")

    async def _get(self, key: m.AdvisoryKey) -> m.AdvisoryState:
        return m.AdvisoryState(session_id=key.session_id, state="placed")


async def hint(it: Deployment, session: str, **more: Any) -> int:
    body = {"session_id": session, **more}
    return (await it.http.post("/v1/advisories", json=body)).status_code


async def complete(it: Deployment, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": "x", **more}
    return await it.http.post("/v1/completions", json=body)


def action(kind: str, **payload: Any) -> dict[str, Any]:
    return {"action_id": "a", "action_type": kind, "action_version": "1.0", "payload": payload}


def envelope(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}


def test_a_sender_whose_turns_do_not_come_is_refused_and_its_turns_are_not(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, hints_per_client=12) as it:
            tracker = Tracker()
            await tracker.serve(it)
            forged = {"place": "elsewhere", "frontend_id": "f", "kv_at": {"h": 1}}
            more = {"agent": "qa", "workflow_id": "w", "ttl_ms": 500, "ordered": True}
            while await hint(it, f"s{len(tracker.heard)}", **more, **forged) == 202:
                assert len(tracker.heard) < 12
            num_heard, first = len(tracker.heard), tracker.heard[0]
            assert num_heard >= 3
            assert (first.agent, first.workflow_id, first.ttl_ms, first.ordered) == (
                "qa", "w", 500, True,
            )  # fmt: skip
            assert (first.place, first.kv_at) == ("127.0.0.1", {}) and first.frontend_id != "f"
            answer = await it.http.post("/v1/advisories", json={"session_id": "s"})
            assert answer.json()["error"]["code"] == "hints_throttled"
            assert int(answer.headers["Retry-After"]) >= 1
            for _ in range(8):  # a quarter each
                deleted = await it.http.delete("/v1/advisories/s")
            assert deleted.status_code == 429
            assert (await it.http.get("/v1/advisories/s")).status_code == 200
            hints = envelope(action("kv.fetch", session_id="t"))
            assert (await complete(it, session_id="s0", kv_hints=hints)).status_code == 200
            assert len(tracker.heard) <= num_heard + 1, "its hints are not carried out"

            status = await it.bus.request(SERVICE_STATUS, m.Empty())
            assert status.hints is not None
            (throttled,) = status.hints.throttled
            assert (throttled.tenant, throttled.place) == ("default", "127.0.0.1")

            verdict = m.HintVerdict(tenant=TENANT, place="127.0.0.1", num_used=1)
            ended = m.HintsEnded(tracker_id="t", verdicts=[verdict])
            assert first.frontend_id is not None
            await it.bus.publish(HINTS_ENDED, ended, first.frontend_id)
            again = await eventually_answers(lambda: hint(it, "again"), lambda told: told == 202)
            assert [again, await hint(it, "s1"), await hint(it, "s2")] == [202] * 3

    asyncio.run(scenario())


def test_each_turn_of_a_session_lets_its_tenant_announce_one_more(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, hints_per_tenant=12) as it:
            await Tracker().serve(it)
            assert [await hint(it, f"s{number}") for number in range(4)] == [202, 202, 202, 429]
            assert (await complete(it)).status_code == 200
            assert await hint(it, "t") == 429, "nothing was announced of a turn without a session"
            assert (await complete(it, session_id="s0", n=1)).status_code == 200
            assert [await hint(it, "t"), await hint(it, "t")] == [202, 429]

    asyncio.run(scenario())


def test_all_that_a_tenant_sends_over_nats_is_one_sender(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, hints_per_client=8) as it:
            tracker = Tracker()
            await tracker.serve(it)
            advisory = m.Advisory(
                session_id=SessionId("s"),
                place="elsewhere",
                frontend_id=FrontendId("f"),
                kv_at={HostId("h"): 1},
            )

            async def send(num: int) -> None:
                for _ in range(num):
                    await it.bus.request(TENANT_ADVISORY_SUBMIT, advisory, "small")

            with pytest.raises(TenantQuota) as refusal:
                await send(12)
            num_heard = len(tracker.heard)
            assert num_heard >= 2
            assert refusal.value.code == HintsThrottled.code
            await it.bus.request(TENANT_ADVISORY_SUBMIT, advisory, "large")
            told = [(each.tenant, each.place, each.kv_at) for each in tracker.heard]
            assert told == [("small", "nats", {})] * num_heard + [("large", "nats", {})]
            assert tracker.heard[0].frontend_id != "f"

    asyncio.run(scenario())


def test_kv_hints_are_carried_out_beside_their_request(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            tracker = Tracker()
            hints = envelope(
                action("kv.fetch", session_id="next", expected_arrival=3),
                action("kv.release", session_id="old"),
                action("kv.share", session_id=1),
                action("kv.fetch"),
                action("kv.retain", duration=7),
            )
            no_tracker = await complete(it, session_id="own", kv_hints=hints)
            assert no_tracker.status_code == 200, "hints fail nothing"
            await tracker.serve(it)
            assert (await complete(it, session_id="own", kv_hints=hints)).status_code == 200
            await eventually(lambda: len(tracker.heard) >= 2 and bool(tracker.taken_back))
            told = {str(each.session_id): each for each in tracker.heard}
            assert told.keys() == {"next", "own"} and set(tracker.taken_back) == {"old"}
            assert (told["next"].expected_arrival, told["next"].model_id) == (3.0, None)
            assert (told["own"].ttl_ms, told["own"].model_id) == (7000, MODEL)
            assert (told["own"].place, told["own"].tenant) == ("127.0.0.1", "default")

            bad = envelope(action("kv.fetch", session_id=5))
            answer = await complete(it, kv_hints=bad)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "kv_hints.actions[0].payload.session_id"
            counted = (await it.http.get("/metrics")).text
            assert 'symphony_kv_hints_total{action="ignored"} 4.0' in counted

    asyncio.run(scenario())


def test_what_a_tenant_asks_over_nats_comes_to_the_tracker_as_its_own(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            heard: list[m.AdvisoryKey] = []

            async def answer(key: m.AdvisoryKey) -> m.AdvisoryState:
                heard.append(key)
                return m.AdvisoryState(session_id=key.session_id, state="placed", tenant=key.tenant)

            await it.bus.serve(ADVISORY_GET, answer)
            await it.bus.serve(ADVISORY_INVALIDATE, answer)
            await it.bus.flush()
            key = m.AdvisoryKey(session_id=SessionId("s"))
            for subject in (TENANT_ADVISORY_GET, TENANT_ADVISORY_INVALIDATE):
                assert (await it.bus.request(subject, key, "acme")).tenant == "acme"
                for wrong, code in (
                    (replace(key, tenant=TenantId("other")), "wrong_tenant"),
                    (replace(key, session_id=SessionId("s" * 10_000)), "invalid_request"),
                    (replace(key, session_id=SessionId("")), "invalid_request"),
                    (replace(key, session_id=SessionId("s" * 70_000)), "invalid_request"),
                ):
                    with pytest.raises(InvalidRequest) as refusal:
                        await it.bus.request(subject, wrong, "acme")
                    assert refusal.value.code == code
            assert heard == [replace(key, tenant=TenantId("acme"))] * 2, "nothing else"

    asyncio.run(scenario())
