"""A tracker that is divided: what each shard takes, and what it hands on."""

from collections import Counter

import pytest

from services.tracker.core import (
    AgentTurns,
    Count,
    Drop,
    Effect,
    Expect,
    ForwardForeseen,
    Limits,
    SendVerdicts,
    Shards,
    TrackerCore,
    check_foreseen,
)
from services.tracker.core.agent_turns import Foreseen
from services.tracker.core.agents import AgentFollower, AgentLimits
from shared.blocks import KEY_BYTES
from shared.errors import HintsThrottled, InvalidRequest, TenantQuota
from shared.ids import DEFAULT_TENANT, FrontendId, ModelId, SessionId, TurnId, WorkerId
from shared.wire.hint_accounts import HintLimits
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AgentRef,
    AgentTurnLeft,
    ForeseenTurn,
    TurnArrived,
    TurnsForeseen,
    prefix_session,
)
from shared.wire.tracker_shards import arrival_wires, left_wire, shard_of

T = DEFAULT_TENANT
MS, SECOND = 1_000_000, 1_000_000_000
WORKER, MODEL = WorkerId("w1"), ModelId("m")


def name_of(prefix: str, shard: int, num_shards: int = 2) -> str:
    """Of a session or workflow that this shard has."""
    names = (f"{prefix}{number}" for number in range(1000))
    return next(name for name in names if shard_of(T, name, num_shards) == shard)


class House:
    """All shards, and what passes between them."""

    def __init__(self, num_shards: int = 2, limits: Limits | None = None) -> None:
        self.num_shards = num_shards
        self.cores = [
            TrackerCore(
                limits or Limits(),
                AgentTurns(AgentFollower(AgentLimits())),
                tracker_id=f"life-{shard}",
                shards=Shards(num_shards, shard),
            )
            for shard in range(num_shards)
        ]
        self.now_ns = SECOND
        self.expected: list[tuple[int, str]] = []  # by whom
        self.dropped: list[tuple[int, str]] = []
        self.passed: list[ForwardForeseen] = []
        self.counts: Counter[str] = Counter()
        self.told: list[SendVerdicts] = []
        self.num_turns = 0

    def arrive(self, session: str, agent: AgentRef | None = None, *, reserved: bool = True) -> None:
        self.num_turns += 1
        arrived = TurnArrived(
            session_id=SessionId(session), turn_id=TurnId(f"t{self.num_turns}"), agent=agent,
            worker_id=WORKER, reserved=reserved,
        )  # fmt: skip
        for _, ids, told in arrival_wires(arrived, self.num_shards):
            shard = int("".join(ids) or 0)
            self.do(shard, self.cores[shard].on_turn_arrived(told, self.now_ns))

    def leave(self, session: str, agent: AgentRef) -> None:
        left = AgentTurnLeft(
            agent=agent, session_id=SessionId(session), model_id=MODEL, keys="5a" * KEY_BYTES
        )
        _, ids = left_wire(left, self.num_shards)
        shard = int("".join(ids) or 0)
        self.do(shard, self.cores[shard].on_agent_turn_left(left, self.now_ns))

    def do(self, shard: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Expect(message):
                    self.expected.append((shard, message.session_id))
                    key = AdvisoryKey(session_id=message.session_id)
                    self.do(shard, self.cores[shard].on_placed(key, WORKER, self.now_ns))
                case Drop(key):
                    self.dropped.append((shard, key.session_id))
                case Count(outcome):
                    self.counts[outcome] += 1
                case SendVerdicts():
                    self.told.append(effect)
                case ForwardForeseen(other, message):
                    self.passed.append(effect)
                    core = self.cores[other]
                    self.do(other, core.on_foreseen(message, self.now_ns))
                case _:
                    pass

    def run(self, names: str, sessions: dict[str, str], workflow_id: str) -> None:
        """Turns of these agents, one after the other."""
        for name in names:
            agent = AgentRef(agent=name, workflow_id=workflow_id)
            self.now_ns += SECOND
            self.arrive(sessions[name], agent)
            self.now_ns += SECOND
            self.leave(sessions[name], agent)


@pytest.mark.parametrize("at_workflow", [0, 1])
def test_what_follows_is_announced_by_the_shard_that_has_its_session(at_workflow: int) -> None:
    house = House()
    workflow_id = name_of("w", at_workflow)
    sessions = {"a": name_of("s", 0), "b": name_of("s", 1)}
    house.run("abababab", sessions, workflow_id)
    assert {shard for shard, name in house.expected if name == sessions["a"]} == {0}
    assert {shard for shard, name in house.expected if name == sessions["b"]} == {1}
    assert {each.shard for each in house.passed} == {1 - at_workflow}, "its own are not handed on"
    house.run("a", sessions, workflow_id)
    before = house.counts["used"], house.counts["missed"]
    house.run("b", sessions, workflow_id)
    assert (house.counts["used"], house.counts["missed"]) == (before[0] + 1, before[1]), (
        "of two that hear of a turn one counts it"
    )


def test_a_turn_counts_once_whoever_hears_of_it() -> None:
    counts = []
    for num_shards in (1, 3):
        house = House(num_shards)
        for number in range(30):
            name, agent = f"s{number}", AgentRef(agent="a", workflow_id=f"w{number}")
            shard = shard_of(T, name, num_shards)
            if number % 3:
                advisory = Advisory(session_id=SessionId(name), frontend_id=FrontendId("f"))
                house.do(shard, house.cores[shard].on_submit(advisory, house.now_ns)[1])
            house.arrive(name, agent if number % 2 else None, reserved=bool(number % 3))
        counts.append(house.counts)
        later_ns = house.now_ns + SECOND
        for shard, core in enumerate(house.cores):
            house.do(shard, core.on_wake(later_ns))
        verdicts = [verdict for tell in house.told for verdict in tell.message.verdicts]
        assert sum(verdict.num_used for verdict in verdicts) == 20
        assert {tell.message.shard for tell in house.told} == {*range(num_shards)}
        assert sum(core.status(later_ns).rates[0].num_hints for core in house.cores) == 20
    assert counts[0] == counts[1] == {"submitted": 20, "used": 20, "missed": 10}


def test_a_session_that_nobody_knows_yet_is_its_workflow_s() -> None:
    """And a turn that comes to its place there is nobody's miss."""
    house = House()
    workflows = [name_of(f"w{number}-", 0) for number in range(4)]
    for number, workflow_id in enumerate(workflows[:3]):
        sessions = {name: name_of(f"{name}{number}-", 1) for name in "ab"}
        house.run("ab", sessions, workflow_id)
    house.expected.clear()
    house.passed.clear()
    house.run("a", {"a": name_of("a9-", 1)}, workflows[3])
    unknown = prefix_session(AgentRef(agent="b", workflow_id=workflows[3]))
    assert house.expected == [(0, unknown)] and not house.passed
    before = house.counts.copy()
    house.run("b", {"b": name_of("b9-", 1)}, workflows[3])
    gained = house.counts - before
    assert gained["used"] == 1 and not gained["missed"]
    assert (0, unknown) in house.dropped


def test_what_is_handed_on_goes_no_further_though_settings_disagree() -> None:
    """One believes in two shards, the other in three, and this session would be the third's."""
    session = next(
        name
        for name in (f"s{number}" for number in range(1000))
        if shard_of(T, name, 2) == 1 and shard_of(T, name, 3) == 2
    )
    other = TrackerCore(Limits(), shards=Shards(3, 1))
    advisory = Advisory(session_id=SessionId(session))
    (own, (handed,)) = Shards(2, 0).divide([Foreseen(advisory, 0.5)])
    assert not own and handed.shard == 1
    effects = other.on_foreseen(handed.message, SECOND)
    assert [type(effect) for effect in effects][:2] == [Count, Expect] and other.num_live == 1
    spare = TrackerCore(Limits(), shards=Shards(3, 1), is_spare=True)
    assert spare.on_foreseen(handed.message, SECOND) == []
    effects = spare.on_lead(SECOND + MS)
    assert (
        not any(isinstance(effect, ForwardForeseen) for effect in effects) and spare.num_live == 1
    )
    submitted, _ = other.on_submit(advisory, SECOND)
    assert submitted.key == (T, session), "what it is asked by its number it takes"


def test_a_spare_s_unsaid_goes_to_the_shard_that_has_the_session() -> None:
    house = House()
    workflow_id = name_of("w", 0)
    sessions = {"a": name_of("s", 0), "b": name_of("s", 1)}
    house.cores[0] = TrackerCore(Limits(), is_spare=True, shards=Shards(2, 0))
    house.run("ababab", sessions, workflow_id)
    house.now_ns += SECOND
    house.arrive(sessions["a"], AgentRef(agent="a", workflow_id=workflow_id))
    assert not house.expected
    house.do(0, house.cores[0].on_lead(house.now_ns))
    assert house.expected == [(1, sessions["b"])]


def test_all_that_one_tenant_may_have_is_divided() -> None:
    limits = Limits(tenant_advisories_max=6, accounts=HintLimits(per_place=80, per_tenant=0))
    house = House(3, limits)
    sent, refused = Counter[int](), Counter[int]()
    for number in range(60):
        name = f"s{number}"
        shard = shard_of(T, name, 3)
        advisory = Advisory(session_id=SessionId(name), frontend_id=FrontendId("f"))
        try:
            house.cores[shard].on_submit(advisory, SECOND)
            sent[shard] += 1
        except TenantQuota:
            refused[shard] += 1
    assert sent == {0: 2, 1: 2, 2: 2} and all(refused.values())
    core = TrackerCore(Limits(accounts=HintLimits(per_place=80, per_tenant=0)), shards=Shards(4))
    for number in range(80 // 4 // 4):  # a newcomer's quarter of this shard's quarter
        core.on_submit(Advisory(session_id=SessionId(f"s{number}")), SECOND)
    with pytest.raises(HintsThrottled):
        core.on_submit(Advisory(session_id=SessionId("s")), SECOND)


@pytest.mark.parametrize("number", range(40))
def test_of_what_all_hear_each_part_is_taken_once(number: int) -> None:
    """As where a scheduler does not know that the tracker is divided."""
    agent = AgentRef(agent="a", workflow_id=f"w{number}")
    arrived = TurnArrived(session_id=SessionId("s"), turn_id=TurnId("t"), agent=agent)
    parts = [Shards(3, shard).part_of(arrived) for shard in range(3)]
    taken = sorted(each.part for each in parts if each is not None)
    assert taken in (["all"], ["session", "workflow"])
    told = {int("".join(ids)): message for _, ids, message in arrival_wires(arrived, 3)}
    assert told == {shard: each for shard, each in enumerate(parts) if each is not None}


@pytest.mark.parametrize(
    ("advisory", "chance", "param"),
    [
        (Advisory(session_id=SessionId("s")), 1.5, "chance"),
        (Advisory(session_id=SessionId("s")), -0.1, "chance"),
        (Advisory(session_id=SessionId("")), 0.5, "session_id"),
        (Advisory(session_id=SessionId("s"), ttl_ms=0), 0.5, "ttl_ms"),
    ],
)
def test_what_no_shard_hands_on_is_refused(advisory: Advisory, chance: float, param: str) -> None:
    turn = ForeseenTurn(advisory=advisory, chance=chance)
    with pytest.raises(InvalidRequest) as refusal:
        check_foreseen(TurnsForeseen(turns=[turn]))
    assert refusal.value.param == param
    fine = ForeseenTurn(advisory=Advisory(session_id=SessionId("s")), chance=0.5)
    check_foreseen(TurnsForeseen(turns=[fine]))
    with pytest.raises(InvalidRequest):
        check_foreseen(TurnsForeseen(turns=[fine] * 1000))
