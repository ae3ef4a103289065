"""`bench hints`: a turn that met something else than it was to meet is no figure."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from loadtest.bench import hints
from loadtest.bench.hints import cases
from loadtest.bench.hints.cases import Seen, Trials
from loadtest.bench.hints.hosts import FAR, NotAsked, Session, TwoHosts
from loadtest.bench.lab import Trace
from shared.errors import InvalidRequest, PeerUnavailable
from shared.ids import HostId, SessionId
from shared.wire.messages import KvStage, KvStats

ASKED = KvStage(
    worker_id=cast(Any, "w"), incarnation="i", fingerprint="f", num_layers=1, page_bytes=1,
    kv_at={FAR: 2},
)  # fmt: skip


@dataclass
class FakeServices:
    """Whose turns have so many tokens cached, after so many stages."""

    cached_tokens: int = 128
    asked: list[KvStage] = field(default_factory=list)
    num_unanswered: int = 0
    said: list[object] = field(default_factory=list)
    far = None

    @property
    def near(self) -> "FakeServices":
        return self

    async def kv_stats(self) -> KvStats:
        return KvStats(disk_blocks=3)

    async def wait_durable(self, num_blocks: int) -> None:
        self.said.append(num_blocks)

    def session(self, num_tokens: int) -> Session:
        return Session(SessionId("s"), [1] * num_tokens)

    async def store(self, lab: object, session: Session) -> None:
        self.said.append("stored")

    async def hint(self, session: Session, lead_s: float) -> None:
        self.said.append("hint")

    async def wait_arrived(self) -> None:
        self.said.append("arrived")

    async def wait_settled(self) -> None:
        self.said.append("settled")

    async def come(
        self, session: Session, num_new: int, kv_at: dict[HostId, int]
    ) -> tuple[Trace, list[KvStage]]:
        self.said.append(kv_at)
        trace = Trace(1.0, session.tokens, 1, token_at=[1.5], cached_tokens=self.cached_tokens)
        return trace, self.asked

    def check_answered(self) -> None:
        if self.num_unanswered:
            self.num_unanswered -= 1
            raise NotAsked


def trials(house: FakeServices, *, can_be_computed: bool = False) -> Trials:
    return Trials(cast(TwoHosts, house), 130, 20, can_be_computed=can_be_computed)


def test_a_hinted_turn_comes_when_everything_is_there() -> None:
    house = FakeServices()
    seen = asyncio.run(trials(house).hinted())
    assert (seen.ttft_ms, seen.cached_tokens) == (500.0, 128)
    assert house.said == ["stored", "hint", "arrived", 3 + 2, "settled", {FAR: 2}, "settled"]


@pytest.mark.parametrize("house", [FakeServices(cached_tokens=127), FakeServices(asked=[ASKED])])
@pytest.mark.parametrize("case", ["hinted", "resident"])
def test_a_history_that_was_not_in_the_pool_is_told(case: str, house: FakeServices) -> None:
    with pytest.raises(PeerUnavailable, match="a history was not in the pool"):
        asyncio.run(getattr(trials(house), case)())


def test_a_turn_that_does_not_fetch_is_told() -> None:
    with pytest.raises(PeerUnavailable, match="did not ask for its history"):
        asyncio.run(trials(FakeServices()).unhinted())
    computed = FakeServices(cached_tokens=0, asked=[ASKED])
    with pytest.raises(PeerUnavailable, match="computed all of its history"):
        asyncio.run(trials(computed).unhinted())
    assert asyncio.run(trials(computed, can_be_computed=True).unhinted()).cached_tokens == 0
    with pytest.raises(PeerUnavailable, match="of a new history were cached"):
        asyncio.run(trials(FakeServices()).recompute())


def test_turns_that_the_far_host_did_not_hear_of_are_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cases, "AVOIDED_S", 0.0)
    house = FakeServices(asked=[ASKED], num_unanswered=cases.TRIES_MAX - 1)
    again = trials(house)
    assert asyncio.run(again.unhinted()).cached_tokens == 128
    assert again.num_void == house.said.count("stored") - 1 == cases.TRIES_MAX - 1
    house.num_unanswered = cases.TRIES_MAX
    with pytest.raises(PeerUnavailable, match="did not answer 4 turns"):
        asyncio.run(again.led(0.0))


def test_figures_are_medians_and_their_ratios() -> None:
    ms = {"resident": 10.0, "hinted": 11.0, "late": 12.0, "unhinted": 15.0, "recompute": 200.0}
    seen = {
        name: [Seen(each, 64, 0.5), Seen(each, 128, 0.5), Seen(9e9, 128, 9.0)]
        for name, each in ms.items()
    }
    figures = hints.summary(seen)
    assert {name: figures[f"{name}_ms"] for name in ms} == ms
    assert figures["hinted_over_resident"] == 1.1
    assert figures["unhinted_over_resident"] == 1.5
    assert figures["recompute_over_resident"] == 20.0
    leads = [(0.0, [Seen(15.0, 0)]), (0.25, [Seen(12.0, 0)])]
    assert hints.lead_curve(leads) == [[0.0, 15.0], [0.25, 12.0]]
    assert figures["transfer_ms"] == 500.0
    assert figures["cached_tokens"] == dict.fromkeys(ms, 64)


@pytest.mark.parametrize(
    "options",
    [["--history-tokens", "63"], ["--sessions", "0"], ["--new-tokens", "0"], ["--link-gbit", "0"]],
)
def test_options_that_cannot_be_are_refused_before_anything_starts(options: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=options[0]):
        hints.run(options)
