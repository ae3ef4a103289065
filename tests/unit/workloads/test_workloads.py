"""What is so of every workload, and what each is known for."""

from collections import defaultdict
from functools import cache
from itertools import pairwise
from random import Random
from statistics import mean, median

import pytest

from loadtest.workloads import burstgpt, chats, metagpt, mooncake, registry
from loadtest.workloads.registry import WORKLOADS, why_absent
from loadtest.workloads.script import Script, ScriptedTurn
from loadtest.workloads.traces import TRACES

SECOND = 1_000_000_000
USERS, DURATION_NS = 24, 240 * SECOND
OF_SESSIONS = sorted(set(WORKLOADS) - {"azure", "servegen"})


@cache
def made(name: str, seed: int = 1) -> list[Script]:
    """The workload, or a skip with the files that are not there."""
    if why := why_absent(name):
        pytest.skip(why)
    return WORKLOADS[name](USERS, DURATION_NS, seed)


def turns_of(scripts: list[Script]) -> list[ScriptedTurn]:
    return [turn for script in scripts for turn in script.turns]


def sessions_of(script: Script) -> list[list[tuple[int, ScriptedTurn]]]:
    """Numbered turns of each session, in order."""
    found = defaultdict(list)
    for number, turn in enumerate(script.turns):
        found[turn.session].append((number, turn))
    return list(found.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_scripts_can_be_played(name: str) -> None:
    scripts = made(name)
    assert scripts
    assert len({script.name for script in scripts}) == len(scripts)
    for script in scripts:
        assert script.turns
        assert 0 <= script.begins_ns < DURATION_NS
        for number, turn in enumerate(script.turns):
            assert all(0 <= before < number for before in turn.after)
            assert turn.wait_ns >= 0
            assert turn.num_output >= 1
            assert turn.parts
            assert all(part.num_tokens >= 1 for part in turn.parts)
            if turn.hint is not None and turn.hint.at_start_of is not None:
                assert turn.hint.at_start_of in turn.after
                assert (turn.hint.expected_in_ns or 0) > 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_makes_one_workload(name: str) -> None:
    first = made(name)
    again = WORKLOADS[name](USERS, DURATION_NS, 1)
    assert again == first
    assert WORKLOADS[name](USERS, DURATION_NS, 2) != again


@pytest.mark.parametrize("name", OF_SESSIONS)
def test_sessions_grow_turn_after_turn(name: str) -> None:
    scripts = made(name)
    grown = 0
    for script in scripts:
        ends = [_all_before(script, number) for number in range(len(script.turns))]
        for turns in sessions_of(script):
            for (before, _), (number, _) in pairwise(turns):
                assert before in ends[number]  # nobody goes on before there is an answer
                grown += 1
    assert grown > len(scripts) / 8


def _all_before(script: Script, number: int) -> set[int]:
    found: set[int] = set()
    waiting = list(script.turns[number].after)
    while waiting:
        turn = waiting.pop()
        if turn not in found:
            found.add(turn)
            waiting += script.turns[turn].after
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_parts_are_equal_text(name: str) -> None:
    """A name has one length; only those that say so are in several sessions."""
    lengths: dict[str, set[int]] = defaultdict(set)
    sessions: dict[str, set[str]] = defaultdict(set)
    for script in made(name):
        for turn in script.turns:
            for part in turn.parts:
                lengths[part.name].add(part.num_tokens)
                sessions[part.name].add(f"{script.name}/{turn.session}")
    assert all(len(each) == 1 for each in lengths.values()) or name.startswith(("mooncake", "meta"))
    is_shared = any(len(each) > 1 for each in sessions.values())
    assert is_shared == name.startswith(("mooncake", "metagpt"))


@pytest.mark.parametrize("name", ["azure", "servegen"])
def test_open_loads_announce_nothing_and_have_no_history(name: str) -> None:
    turns = turns_of(made(name))
    assert all(turn.hint is None and not turn.after for turn in turns)
    assert len({turn.session for turn in turns}) == len(turns)
    # As many as so many people of `sharegpt-like` send, give or take bursts.
    assert 0.2 < len(turns) / len(turns_of(made("sharegpt-like"))) < 4


def test_people_read_type_and_tell_of_it() -> None:
    scripts = made("sharegpt-like")
    turns = turns_of(scripts)
    assert all(turn.hint and 0 < turn.hint.lead_ns <= turn.wait_ns for turn in turns)
    assert 5 < mean(turn.hint.lead_ns for turn in turns if turn.hint) / SECOND < 60
    for script in scripts:
        first = script.turns[0]
        assert first.hint is not None
        assert first.wait_ns == first.hint.lead_ns  # nothing to read yet


def test_dialogues_have_as_many_turns_and_tokens_as_the_papers() -> None:
    if why := why_absent("sharegpt-like"):
        pytest.skip(why)
    dialogues, rng = chats.load(), Random(3)
    drawn = [dialogues.draw(rng) for _ in range(4000)]
    assert 0.71 < mean(len(words) > 1 for words in drawn) < 0.76
    tokens = mean(len(words) for words in drawn) * mean(dialogues.answers)
    assert 1_900 < tokens < 2_600  # section 2.2: 2.2 K


def test_some_are_in_the_middle_of_a_dialogue() -> None:
    firsts = [script.turns[0].parts for script in made("sharegpt-like")]
    assert {len(parts) for parts in firsts} == {1, 2}
    assert all(parts[0].num_tokens > 500 for parts in firsts if len(parts) == 2)


def test_busy_people_do_not_read() -> None:
    turns = turns_of(made("sharegpt-busy"))
    assert all(turn.hint and turn.hint.lead_ns == turn.wait_ns for turn in turns)
    assert len(turns) > 3 * len(turns_of(made("sharegpt-like")))


def test_sessions_begin_with_a_document_and_come_back_to_it() -> None:
    scripts = made("documents")
    for script in scripts:
        begun: set[str] = set()
        for turn in script.turns:
            assert len(turn.parts) == (1 if turn.session in begun else 2)
            if turn.session not in begun:
                assert 8_000 <= turn.parts[0].num_tokens <= 60_000
            begun.add(turn.session)
    returns = [turn for turn in turns_of(scripts) if len(turn.parts) == 1]
    assert median(turn.wait_ns for turn in returns) > 30 * SECOND
    assert all(turn.hint and turn.hint.lead_ns < turn.wait_ns for turn in returns)


def test_prefill_documents_keep_the_pace_and_the_documents() -> None:
    def paces(name: str) -> list[tuple[int, int, int]]:
        return [
            (turn.wait_ns, script.begins_ns, sum(part.num_tokens for part in turn.parts[:-1]))
            for script in made(name)
            for turn in script.turns
        ]

    assert paces("prefill-documents") == paces("documents")
    for turn in turns_of(made("prefill-documents")):
        assert (turn.parts[-1].num_tokens, turn.num_output) == (1024, 1)


def test_burstgpt_has_the_sessions_and_pauses_of_its_file() -> None:
    if why := why_absent("burstgpt"):
        pytest.skip(why)
    sessions = burstgpt.load_sessions()
    assert sum(len(session) > 1 for session in sessions) == 76
    pauses_s = sorted(each.pause_ns / 1e9 for chat in sessions for each in chat[1:])
    assert 100 < median(pauses_s) < 130
    assert 15 < pauses_s[len(pauses_s) // 10] < 20


def test_squeezed_pauses_are_a_tenth() -> None:
    if why := why_absent("burstgpt-10x"):
        pytest.skip(why)
    slow = WORKLOADS["burstgpt"](4, 10 * DURATION_NS, 3)
    fast = WORKLOADS["burstgpt-10x"](4, DURATION_NS, 3)
    for script, squeezed in zip(slow, fast, strict=True):
        waits = [turn.wait_ns // 10 for turn in script.turns]
        assert [turn.wait_ns for turn in squeezed.turns] == waits


def test_mooncakes_sessions_have_every_request_once() -> None:
    if why := why_absent("mooncake"):
        pytest.skip(why)
    chains = mooncake.load_chains()
    requests = [request for chain in chains for request in chain.requests]
    assert len(requests) == len(mooncake.load_requests()) == 12_031
    assert sum(len(chain.requests) > 1 for chain in chains) > 1000
    for chain in chains[:500]:
        times = [request.at_ns for request in chain.requests]
        assert times == sorted(times)
        for before, after in pairwise(chain.requests):
            assert set(before.blocks[:-1]) & set(after.blocks[:-1])


def test_fewer_users_are_part_of_more() -> None:
    few = {script.name for script in made("mooncake")}
    more = {script.name for script in WORKLOADS["mooncake"](4 * USERS, DURATION_NS, 1)}
    assert few < more


@pytest.mark.parametrize("num_files", [4, 8, 12])
def test_metagpt_calls_each_agent_for_each_file(num_files: int) -> None:
    script = made(f"metagpt-{num_files}")[0]
    by_agent = defaultdict(set)
    for turn in script.turns:
        by_agent[turn.agent].add(turn.session)
    assert {agent: len(each) for agent, each in by_agent.items()} == {
        "architect": 1, "engineer": num_files, "reviewer": num_files
    }  # fmt: skip
    assert len(script.turns) == 1 + 7 * num_files


def test_metagpts_hints_are_learned_from_the_other_run() -> None:
    if why := why_absent("metagpt"):
        pytest.skip(why)
    runs = metagpt.load_runs()
    script = made("metagpt-8")[0]
    expected = {turn.hint.expected_in_ns for turn in script.turns if turn.hint}
    learned = {
        metagpt.learned_ns(runs["B"], role) for role in ("architect", "engineer", "reviewer")
    }
    assert expected == learned
    assert min(learned) > SECOND


def test_absent_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "path_of", lambda name: TRACES / "none" / name)
    assert why_absent("azure") == ("not in ../shared/traces: azure/azure_llm_2023_conv.csv.gz")
    assert "human_speeds.csv, text/oasst" in why_absent("sharegpt-like")
