"""What an advisory costs its sender at a frontend, and what it does not reach."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.frontend.api.sessions import advisories
from services.frontend.api.sessions.advising import carry_out, submit
from services.frontend.app import App
from services.frontend.prepare.requests import Wish
from services.frontend.tenants.links import Link
from services.frontend.turns.hints import HintGate
from shared.bus import Bus
from shared.errors import (
    InvalidRequest,
    MalformedMessage,
    NoCapacity,
    PeerUnavailable,
    SymphonyError,
    TenantQuota,
)
from shared.ids import DEFAULT_TENANT, FrontendId, ModelId, SessionId, TenantId
from shared.runtime.clock import Clock
from shared.wire.hint_accounts import HintLimits
from shared.wire.messages import Advisory, AdvisoryState
from shared.wire.subjects import SHARD_ADVISORY_SUBMIT, TENANT_ADVISORY_SUBMIT
from shared.wire.tracker_shards import shard_of

T = DEFAULT_TENANT
Answer = Callable[[TenantId, Advisory], Awaitable[AdvisoryState]]


class Peers:
    """A frontend's, of which the tracker answers as it is told to."""

    def __init__(self, refusal: SymphonyError | None = None, num_shards: int = 1) -> None:
        self.refusal = refusal
        self.heard: list[Any] = []
        self.asked: list[tuple[object, tuple[str, ...]]] = []
        self.num_located = 0
        self.answer: Answer | None = None
        clock = cast(Clock, SimpleNamespace(now_ns=lambda: 1))
        limits = HintLimits(per_place=40, per_tenant=0)
        self.gate = HintGate(cast(Bus, self), clock, FrontendId("f"), limits, num_shards)
        self.app = cast(
            App, SimpleNamespace(hints=self.gate, bus=self, sessions=self, adapters=self)
        )

    async def request(
        self, subject: object, message: Any, *ids: str, timeout_s: float, grace_s: float
    ) -> AdvisoryState:
        self.heard.append(message)
        self.asked.append((subject, ids))
        if self.refusal is not None:
            raise self.refusal
        return AdvisoryState(session_id=message.session_id, state="placed")

    async def locate(self, tenant: TenantId, session_id: SessionId) -> dict[str, int]:
        self.num_located += 1
        return {"h": 3} if session_id.startswith("with KV") else {}

    async def hinted(self, tenant: TenantId, model_id: ModelId) -> None:
        return None

    async def serve_tenants(self, subject: object, answer: Answer, **_: object) -> None:
        if subject is TENANT_ADVISORY_SUBMIT:
            self.answer = answer

    @property
    def account(self) -> Any:
        return self.gate._accounts._places.of[T, "p"]

    @property
    def tokens(self) -> float:
        return float(self.account.tokens)

    @property
    def open(self) -> float:
        return float(self.account.open)


def do(peers: Peers, *wishes: Wish) -> None:
    about: Any = {"tenant": T, "place": "p", "model_id": None, "request_id": "r", "trace": "x"}
    asyncio.run(carry_out(peers.app, wishes, **about))


def test_a_hint_of_a_traced_request_is_traced_with_it() -> None:
    peers = Peers()
    do(peers, Wish(action="fetch", session_id="s", is_own=False, is_wanted=True))
    (advisory,) = peers.heard
    assert advisory.trace == "x"
    asyncio.run(submit(peers.app, Advisory(session_id=SessionId("s"), trace="made up"), "nats"))
    assert peers.heard[-1].trace == ""


def test_taking_back_by_a_kv_hint_costs_what_deleting_does() -> None:
    peers = Peers()
    do(peers, Wish(action="release", session_id="s", is_own=False, is_wanted=False))
    assert (peers.tokens, peers.open) == (9.75, 0)
    do(peers, Wish(action="fetch", session_id="s", is_own=False, is_wanted=True))
    assert (peers.tokens, peers.open) == (8.75, 1) and len(peers.heard) == 2


@pytest.mark.parametrize(
    ("refusal", "cost", "num_open"),
    [
        (PeerUnavailable("away"), 0.25, 0),
        (NoCapacity("full"), 0.25, 0),
        (TenantQuota("full"), 0.25, 0),
        (MalformedMessage("of another release"), 0.25, 0),
        (InvalidRequest("as the bus passes it on", code=MalformedMessage.code), 0.25, 0),
        (InvalidRequest("its own fault"), 1, 1),
    ],
)
def test_what_nobody_takes_costs_a_quarter(
    refusal: SymphonyError, cost: float, num_open: float
) -> None:
    peers = Peers(refusal)
    with pytest.raises(SymphonyError) as raised:
        asyncio.run(submit(peers.app, Advisory(session_id=SessionId("s")), "p"))
    assert (peers.tokens, peers.open) == (10 - cost, num_open)
    assert isinstance(raised.value, NoCapacity) == (num_open == 0)


def test_a_session_with_kv_pays_for_itself_and_an_invented_one_does_not() -> None:
    peers = Peers()
    for name in ("with KV", "invented"):
        asyncio.run(submit(peers.app, Advisory(session_id=SessionId(name), payer="session"), "p"))
    assert [each.payer for each in peers.heard] == ["session", "place"]
    assert peers.heard[0].kv_at == {"h": 3} and (peers.tokens, peers.open) == (9, 1)


def test_what_is_too_long_reaches_nobody_from_nats() -> None:
    peers = Peers()
    asyncio.run(advisories.serve(peers.app, Link(cast(Bus, peers), [None])))
    assert peers.answer is not None
    advisory = Advisory(session_id=SessionId("s"), model_id=ModelId("m" * 257))

    async def send() -> None:
        assert peers.answer is not None
        await peers.answer(T, advisory)

    with pytest.raises(InvalidRequest, match="model_id must have at most 256"):
        asyncio.run(send())
    assert not peers.heard and not peers.num_located


def test_the_shard_that_has_the_session_is_asked_and_answers_for_it() -> None:
    peers = Peers(num_shards=3)
    sessions = [SessionId(f"s{number}") for number in range(9)]
    for session_id in sessions:
        asyncio.run(submit(peers.app, Advisory(session_id=session_id), "p"))
    shards = [shard_of(T, session_id, 3) for session_id in sessions]
    assert peers.asked == [(SHARD_ADVISORY_SUBMIT, (str(shard),)) for shard in shards]
    assert peers.account.open_at == Counter(shards)
