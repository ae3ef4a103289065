"""`bench capacity`: memories of blocks, on prompts that were made up."""

from random import Random

import pytest

from loadtest.bench import capacity
from loadtest.bench.capacity import replay, run
from loadtest.bench.capacity.memories import Clairvoyant, Memory, Ordered, PlainLru
from loadtest.bench.capacity.traces import TRACES, Ask, of_scripts, trace
from loadtest.workloads.mooncake import BLOCK_TOKENS
from loadtest.workloads.script import Part, Script, ScriptedTurn
from shared.errors import InvalidRequest

SECOND = 1_000_000_000
LAYERS = 4


def made_up() -> list[tuple[int, ...]]:
    """Sessions in any order, each with one block more every time."""
    rng, fresh = Random(5), iter(range(1, 10_000))
    prompts: list[tuple[int, ...]] = []
    blocks: dict[int, tuple[int, ...]] = {}
    for _ in range(400):
        session = rng.randrange(12)
        blocks[session] = (*blocks.get(session, (0,)), next(fresh))[:20]
        prompts.append(blocks[session])
    return prompts


PROMPTS = made_up()
ASKS = [Ask(number * SECOND, prompt) for number, prompt in enumerate(PROMPTS)]
ALL = len({block for prompt in PROMPTS for block in prompt})


def memories(num_blocks: int) -> dict[str, Memory]:
    return {
        "plain": PlainLru(num_blocks),
        "lru": Ordered("lru", num_blocks, LAYERS),
        "predicted": Ordered("predicted", num_blocks, LAYERS),
        "layer": Ordered("layer", num_blocks, LAYERS),
        "clairvoyant": Clairvoyant(num_blocks, PROMPTS),
    }


@pytest.mark.parametrize("num_blocks", [25, 60, 120])
def test_who_knows_all_keeps_most(num_blocks: int) -> None:
    found = {name: replay(each, ASKS) for name, each in memories(num_blocks).items()}
    assert max(found, key=lambda name: found[name]) == "clairvoyant"
    assert all(0 < percent < found["clairvoyant"] for name, percent in found.items()
               if name != "clairvoyant")  # fmt: skip
    assert found["lru"] == pytest.approx(found["plain"], rel=0.05)


def test_with_room_for_all_everybody_finds_all_that_was_there() -> None:
    seen: set[int] = set()
    expected = 0
    for prompt in PROMPTS:
        expected += len(seen & set(prompt))
        seen |= set(prompt)
    percent = 100 * expected / sum(map(len, PROMPTS))
    for memory in memories(ALL).values():
        assert replay(memory, ASKS) == pytest.approx(percent)


def test_layers_leave_one_by_one() -> None:
    """Half of a prompt that was used lately makes room for another one, and half is found."""
    memory = Ordered("layer", 4, LAYERS)
    asked = [((1, 2), 0.0), ((3, 4), 0.0), ((5, 6), 0.0), ((1, 2), 1.0)]
    for number, (prompt, found) in enumerate(asked):
        assert memory.ask(prompt, number * SECOND) == found


def test_a_prompt_beyond_all_room_is_kept_as_far_as_it_fits() -> None:
    memory = Ordered("layer", 4, LAYERS)
    assert memory.ask(range(10), 0) == 0
    assert memory.ask(range(10), SECOND) == 4


def test_scripted_users_prompts_are_cut_into_blocks_by_their_text() -> None:
    """Two users begin with the same text; each of one's prompts begins with the one before."""

    def script(name: str, begins_ns: int) -> Script:
        turns = [
            ScriptedTurn(session=name, parts=parts, num_output=10, wait_ns=SECOND)
            for parts in (
                (Part("same", BLOCK_TOKENS + 1), Part(f"{name}/0", BLOCK_TOKENS)),
                (Part(f"{name}/1", 2 * BLOCK_TOKENS),),
            )
        ]
        return Script(name=name, turns=tuple(turns), begins_ns=begins_ns)

    asks = list(of_scripts([script("a", 5), script("b", 0)]))
    assert [ask.at_ns for ask in asks] == sorted(ask.at_ns for ask in asks)
    first, second, third, fourth = (ask.blocks for ask in asks)
    assert [len(blocks) for blocks in (first, second, third, fourth)] == [2, 2, 4, 4]
    assert first[0] == second[0] and first[1] != second[1]
    assert third[:2] == first and fourth[:2] == second and not {*third[1:]} & {*fourth[1:]}


@pytest.mark.parametrize("name", ["cycle", "zipf", "scans", "shifts", "shared-prompts"])
def test_the_predicted_order_finds_half_of_what_lru_misses_where_a_pattern_is(name: str) -> None:
    """All of them, but Zipf's whose order changes: there it is better."""
    asks = [Ask(ask.at_ns, ask.blocks[::4]) for ask in trace(name)[:5000]]
    num_blocks = 400
    lru, predicted, best = (
        replay(memory, asks)
        for memory in (
            PlainLru(num_blocks),
            Ordered("predicted", num_blocks, 1),
            Clairvoyant(num_blocks, [ask.blocks for ask in asks]),
        )
    )
    share = {"shifts": 0.15, "zipf": 0.4}.get(name, 0.5)
    assert predicted >= lru + share * (best - lru)


def test_run_reports_percents_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACES, "zipf", lambda: ASKS)
    result = run(["--tb", "0.002,inf", "--requests", "300", "--trace", "zipf"])
    for percents in result["hit_percent"]["zipf"].values():
        assert (
            0 < percents["0.002"] < percents["inf"] == result["hit_percent"]["zipf"]["lru"]["inf"]
        )


def test_sizes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("0", "-1", "much", "nan"):
        with pytest.raises(InvalidRequest, match=f"--tb {text}: use numbers above 0"):
            run(["--tb", text])
    monkeypatch.setattr(capacity, "why_no_trace", lambda name: "not here")
    assert set(run([])["skipped"]) == set(TRACES)
