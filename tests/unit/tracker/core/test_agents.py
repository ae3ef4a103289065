"""Call graphs of agents: what is learned, what is announced, what is forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tracker.core.agents import (
    AgentFollower,
    AgentHint,
    AgentLimits,
    CallGraph,
    dump_graph,
    load_graph,
)
from services.tracker.core.agents.delays import Delays
from services.tracker.core.agents.graph import Position, standing_of
from shared.errors import ConfigError
from shared.ids import DEFAULT_TENANT, SessionId, TenantId

SECOND = 1_000_000_000


class Flow:
    """A follower, the time, and workflows whose agents have one session each if nothing else is
    said.
    """

    def __init__(
        self, limits: AgentLimits | None = None, learned: dict[str, CallGraph] | None = None
    ) -> None:
        self.limits = limits or AgentLimits()
        self.follower = AgentFollower(self.limits, learned)
        self.now_ns = 0
        self.used: list[float | None] = []

    def begin(
        self, agent: str, workflow: str = "w", session: str = "", tenant: str = DEFAULT_TENANT
    ) -> list[AgentHint]:
        reaction = self.follower.on_turn_began(
            TenantId(tenant), workflow, agent, SessionId(session or f"{workflow}/{agent}"),
            self.now_ns,
        )  # fmt: skip
        used = reaction.used
        self.used.append(None if used is None else (self.now_ns - used.sent_at_ns) / SECOND)
        return reaction.hints

    def end(
        self, agent: str, workflow: str = "w", session: str = "", tools: tuple[str, ...] = ()
    ) -> list[AgentHint]:
        return self.follower.on_turn_ended(
            DEFAULT_TENANT, workflow, agent, SessionId(session or f"{workflow}/{agent}"),
            self.now_ns, tools=tools,
        ).hints  # fmt: skip

    def run(
        self, agents: str, workflow: str = "w", *, each_s: float = 10, tenant: str = DEFAULT_TENANT
    ) -> list[AgentHint]:
        """One agent a letter, one after another; returns the hints at the last one's beginning."""
        hints: list[AgentHint] = []
        for agent in agents:
            hints = self.begin(agent, workflow, tenant=tenant)
            self.now_ns += int(each_s * SECOND)
            self.follower.on_turn_ended(
                TenantId(tenant), workflow, agent, SessionId(f"{workflow}/{agent}"), self.now_ns
            )
        return hints

    def over(self, workflow: str = "w") -> None:
        self.follower.on_workflow_over(DEFAULT_TENANT, workflow)

    def teach(self, *runs: str, each_s: float = 10) -> None:
        for number, agents in enumerate(runs):
            self.run(agents, f"taught{number}", each_s=each_s)
            self.over(f"taught{number}")


def agents_of(hints: list[AgentHint]) -> set[str]:
    return {hint.agent for hint in hints}


def test_what_followed_before_is_announced_when_it_is_expected() -> None:
    flow = Flow()
    flow.teach("ab", "ab", "ab", each_s=7)
    (hint,) = flow.begin("a", "new")
    assert (hint.agent, hint.session_id) == ("b", None)
    assert hint.chance > 0.7
    assert hint.arrives_in_ns is not None
    assert hint.arrives_in_ns / SECOND == pytest.approx(7, rel=0.1)


def test_a_session_is_known_by_its_workflow() -> None:
    flow = Flow()
    flow.teach("abab", "abab")
    flow.run("ab", "x")
    flow.run("ab", "y")
    (hint,) = flow.begin("a", "x")
    assert hint.session_id == "x/b"
    flow.now_ns += SECOND
    flow.begin("b", "x")
    assert flow.used[-1] == 1


def test_the_agent_before_tells_two_ways_apart() -> None:
    flow = Flow()
    flow.teach(*["xac", "yad"] * 5)
    assert agents_of(flow.run("xa", "x")) == {"c"}
    assert agents_of(flow.run("ya", "y")) == {"d"}
    first = Flow(replace(flow.limits, order_max=1))
    first.teach(*["xac", "yad"] * 5)
    assert agents_of(first.run("xa", "x")) == {"c", "d"}


def test_agents_with_names_of_their_own_are_predicted_by_where_they_stand() -> None:
    flow = Flow()
    flow.teach(*[f"{a}{b}{a}{b}{a}{b}" for a, b in ("ab", "cd", "ef", "gh")])
    assert "p" in agents_of(flow.run("pqpq"))
    plain = Flow(replace(flow.limits, backs_off=False))
    plain.teach(*[f"{a}{b}{a}{b}{a}{b}" for a, b in ("ab", "cd", "ef", "gh")])
    assert not plain.run("pq")


def test_rare_successors_are_not_announced() -> None:
    flow = Flow()
    flow.teach(*["ab"] * 30, "ac")
    assert agents_of(flow.begin("a", "new")) == {"b"}


def test_what_comes_much_later_is_not_announced() -> None:
    flow = Flow()
    flow.teach("ab", "ab", "ab", each_s=1000)
    assert not flow.begin("a", "new")


def test_what_was_learned_is_forgotten_with_turns() -> None:
    flow = Flow(AgentLimits(half_life=10))
    flow.teach(*["ab"] * 20)
    flow.teach(*["ac"] * 60)
    assert agents_of(flow.begin("a", "new")) == {"c"}


def test_what_always_holds_is_not_doubted_after_long() -> None:
    flow = Flow(AgentLimits(half_life=10))
    flow.teach(*["ab"] * 60)
    (hint,) = flow.begin("a", "new")
    assert hint.chance > 0.9


def test_an_agent_that_fans_out_announces_every_session() -> None:
    flow = Flow()
    for _ in range(3):
        for session in "123":
            flow.begin("b", session=session)
        flow.now_ns += 5 * SECOND
        for session in "123":
            flow.end("b", session=session)
        flow.begin("a")
        flow.now_ns += 5 * SECOND
        flow.end("a")
    flow.run("b")
    hints = flow.begin("a")
    assert {hint.session_id for hint in hints} == {"1", "2", "3"}
    assert all(hint.chance <= 1 for hint in hints)
    flow.now_ns += 3 * SECOND
    assert not flow.begin("a", session="beside"), "the turn beside it has announced them"


def test_turns_beside_each_other_do_not_follow_each_other() -> None:
    flow = Flow()
    for session in "123":
        flow.begin("b", session=session)
        flow.now_ns += SECOND
    for session in "123":
        flow.end("b", session=session)
    flow.over()
    assert flow.follower.graph(DEFAULT_TENANT, "").successors(Position(("b",), "#new")) == []


def test_work_is_taken_up_where_it_lay_longest() -> None:
    flow = Flow()
    for session in "1231231":
        flow.begin("a", session=session)
        flow.now_ns += SECOND
        flow.end("a", session=session)
    assert [hint.session_id for hint in flow.begin("a", session="2")] == ["3"]


def test_a_tool_is_a_hop_after_which_its_caller_comes_back() -> None:
    flow = Flow()
    for _ in range(5):
        flow.begin("a")
        flow.now_ns += 2 * SECOND
        flow.end("a", tools=("ls",))
        flow.now_ns += 6 * SECOND
    graph = flow.follower.graph(DEFAULT_TENANT, "")
    assert "tool:ls" in graph.agents
    flow.run("b", "other")
    flow.begin("c", "other")  # by another agent, too
    (hint,) = flow.end("c", "other", tools=("ls",))
    assert (hint.agent, hint.session_id) == ("c", "other/c")
    assert hint.arrives_in_ns is not None
    assert hint.arrives_in_ns / SECOND == pytest.approx(6, rel=0.1)
    (hint,) = flow.begin("a", "third")
    assert hint.arrives_in_ns is not None
    assert hint.arrives_in_ns / SECOND == pytest.approx(8, rel=0.2), "through the tool"


def test_a_session_comes_back_from_its_own_tool() -> None:
    flow = Flow()
    flow.begin("a")
    flow.end("a", tools=("fast",))
    flow.begin("b")
    flow.end("b", tools=("slow",))
    flow.begin("a")
    flow.over()
    tables = flow.follower.graph(DEFAULT_TENANT, "").tables
    assert list(tables[("a", "tool:fast")].edges) == ["a"]
    assert not tables[("b", "tool:slow")].edges


def test_a_turn_that_takes_too_long_announces_again_at_its_end() -> None:
    flow = Flow()
    flow.teach("ab", "ab", "ab")
    flow.begin("a")
    before = flow.follower.outcomes.num_expired
    flow.now_ns += 300 * SECOND
    (hint,) = flow.end("a")
    assert (hint.agent, hint.arrives_in_ns) == ("b", 0)
    flow.begin("b")
    assert flow.used[-1] == 0
    assert flow.follower.outcomes.num_expired == before + 1


def test_a_turn_whose_end_is_not_heard_ends() -> None:
    flow = Flow()
    flow.teach("ab", "ab")
    flow.begin("a")
    flow.now_ns += flow.limits.turn_ns + SECOND
    flow.begin("b")
    flow.end("b")
    assert agents_of(flow.begin("a")) == {"b"}, "b followed, so a follows b"


def test_tenants_learn_nothing_from_each_other() -> None:
    flow = Flow()
    for number in range(5):
        flow.run("ab", f"w{number}", tenant="other")
    assert not flow.begin("a", "w0")
    assert not flow.begin("a", "w9")


def test_applications_are_told_apart_by_their_agents_names() -> None:
    flow = Flow()
    for number in range(5):
        for agent in ("x/a", "x/b"):
            flow.begin(agent, f"w{number}")
            flow.end(agent, f"w{number}")
    assert not flow.begin("y/a", "new")


def test_a_learned_graph_is_begun_with_and_stays_as_it_was() -> None:
    flow = Flow()
    flow.teach("ab", "ab", "ab")
    learned = flow.follower.graph(DEFAULT_TENANT, "")
    before = dump_graph(learned, "")
    after = Flow(learned={"": learned})
    assert agents_of(after.begin("a", tenant="one")) == {"b"}
    after.run("acacac", "v", tenant="one")
    assert agents_of(after.begin("a", "z", tenant="two")) == {"b"}
    assert dump_graph(learned, "") == before


def test_a_graph_without_times_tells_no_arrival() -> None:
    flow = Flow()
    flow.teach("ab", "ab", "ab")
    flow.begin("a")
    flow.end("a", tools=("ls",))
    graph = flow.follower.graph(DEFAULT_TENANT, "")
    graph.forget_delays()
    _, graph = load_graph(dump_graph(graph, ""), flow.limits)
    hints = Flow(learned={"": graph}).begin("a", "new")
    # The second by way of the tool.
    assert [(hint.agent, hint.arrives_in_ns) for hint in hints] == [("b", None), ("a", None)]


def test_a_frozen_graph_learns_nothing() -> None:
    graph = CallGraph(AgentLimits())
    graph.is_frozen = True
    flow = Flow(learned={"": graph})
    flow.teach("ab", "ab")
    assert not flow.follower.graph(DEFAULT_TENANT, "").agents


@settings(max_examples=25, deadline=None)
@given(runs=st.lists(st.text("abcdef", min_size=1, max_size=12), min_size=1, max_size=8))
def test_chances_of_agents_one_after_another_sum_to_one_at_most(runs: list[str]) -> None:
    flow = Flow()
    flow.teach(*runs)
    graph = flow.follower.graph(DEFAULT_TENANT, "")
    recent = tuple(dict.fromkeys(reversed(runs[-1])))
    for context in list(graph.tables):
        for standing in ("#0", "#1", "#new"):
            chances = [
                each.chance for each in graph.successors(Position(context, standing, recent))
            ]
            assert all(0 <= chance <= 1 for chance in chances)
            assert sum(chances) <= 1 + 1e-9


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("abcdefghij"), st.integers(0, 9), st.integers(0, 5), st.booleans()
        ),
        max_size=80,
    )
)
def test_everything_has_a_limit(steps: list[tuple[str, int, int, bool]]) -> None:
    limits = AgentLimits(
        contexts_max=7, edges_max=3, graphs_max=2, workflows_max=3, workflow_turns_max=4,
        workflow_sessions_max=2, hints_max=2,
    )  # fmt: skip
    flow = Flow(limits)
    for agent, session, workflow, has_tool in steps:
        tenant = TenantId(f"t{workflow % 3}")
        flow.now_ns += SECOND
        hints = flow.begin(agent, f"w{workflow}", f"s{session}", tenant)
        assert len(hints) <= limits.hints_max
        flow.follower.on_turn_ended(
            tenant, f"w{workflow}", agent, SessionId(f"s{session}"), flow.now_ns,
            tools=("ls",) if has_tool else (),
        )  # fmt: skip
        follower = flow.follower
        assert follower.num_workflows <= limits.workflows_max
        assert follower.num_graphs <= limits.graphs_max
        graph = follower.graph(tenant, "")
        assert len(graph.tables) <= limits.contexts_max
        assert all(len(table.edges) <= limits.edges_max for table in graph.tables.values())
        assert len(follower.on_turn_began(tenant, f"w{workflow}", agent, None, 0).hints) <= 2


def test_who_opens_most_workflows_loses_them_first() -> None:
    flow = Flow(AgentLimits(workflows_max=4))
    flow.teach("ab", "ab", "ab")
    flow.begin("a", "mine")
    for number in range(20):
        flow.begin("a", f"w{number}", tenant="greedy")
    flow.begin("b", "mine")
    assert flow.used[-1] is not None


def test_an_idle_workflow_is_forgotten() -> None:
    flow = Flow()
    flow.begin("a", "old")
    flow.now_ns += flow.limits.workflow_idle_ns + SECOND
    flow.begin("a", "new")
    assert flow.follower.num_workflows == 1


def test_a_graph_is_stored_and_read() -> None:
    flow = Flow()
    flow.teach("abab", "ac")
    flow.begin("a")
    flow.end("a", tools=("ls",))
    flow.over()
    stored = dump_graph(flow.follower.graph(DEFAULT_TENANT, ""), "app")
    application, graph = load_graph(stored, flow.limits)
    assert application == "app"
    assert dump_graph(graph, "app") == stored
    position = Position(("a",), "#new")
    was = flow.follower.graph(DEFAULT_TENANT, "").successors(position)
    assert [(each.agent, each.chance) for each in graph.successors(position)] == [
        (each.agent, each.chance) for each in was
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "format"),
        ({"version": 2}, "version"),
        ({"application": 3}, "application"),
        ({"fit": [1, float("nan")]}, "fit"),
        ({"fit": [1]}, "fit"),
        ({"tables": {}}, "tables"),
        ({"tables": [{"context": []}]}, "context"),
        ({"tables": [{"context": ["a"], "num_turns": -1, "edges": []}]}, "num_turns"),
        ({"tables": [{"context": ["a"], "num_turns": 1, "edges": [{"to": "b"}]}]}, "delays"),
        ({"everywhere": None}, "everywhere"),
    ],
)
def test_what_is_no_graph_is_refused(change: dict[str, object], says: str) -> None:
    stored = dump_graph(CallGraph(AgentLimits()), "")
    with pytest.raises(ConfigError, match=says):
        load_graph(stored | change, AgentLimits())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1_000_000, 10**14), min_size=1, max_size=30), st.floats(0.01, 1))
def test_quantiles_of_delays_are_right_within_a_bucket(values: list[int], share: float) -> None:
    delays = Delays()
    for value in values:
        delays.add(value)
    at = max(-(-int(share * len(values) * 1000) // 1000) - 1, 0)
    exact = sorted(values)[min(at, len(values) - 1)]
    near = sorted(values)[min(at + 1, len(values) - 1)]
    found = delays.quantile(share)
    assert exact / 1.2 <= found <= near * 1.2


def test_places_far_back_are_one() -> None:
    assert standing_of("z", [*"abcdefghijklmnopqrstuvwxyz"]) == "#16"


def test_idle_workflows_end_a_few_at_a_turn_and_none_goes_on() -> None:
    flow = Flow(AgentLimits(workflow_idle_ns=SECOND))
    for number in range(12):
        flow.begin("a", f"w{number}")
    flow.now_ns += 2 * SECOND
    flow.begin("b", "new")
    assert flow.follower.num_workflows == 9
    flow.begin("b", "w11")
    assert flow.follower.num_workflows == 5
    table = flow.follower.graph(DEFAULT_TENANT, "").tables["a",]
    assert table.num_turns > 8 and not table.edges, "b did not follow the a of long ago"


def test_of_turns_side_by_side_some_are_learned_from_and_none_as_alone() -> None:
    flow = Flow(AgentLimits(workflow_turns_max=128, workflow_sessions_max=128))
    for number in range(60):
        flow.begin("a", session=f"a{number}")
    for number in range(60):
        flow.end("a", session=f"a{number}")
    flow.begin("b")
    flow.over()
    table = flow.follower.graph(DEFAULT_TENANT, "").tables["a",]
    assert table.edges["b"].num_calls == pytest.approx(16, rel=0.1)
    assert table.chance("b") == pytest.approx(1)
