"""`bench capacity`: memories of blocks, on prompts that were made up."""

from random import Random

import pytest

from loadtest.bench import capacity
from loadtest.bench.capacity import replay, run
from loadtest.bench.capacity.memories import Clairvoyant, Memory, Ordered, PlainLru
from loadtest.workloads import mooncake
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
TIMES = [number * SECOND for number in range(len(PROMPTS))]
ALL = len({block for prompt in PROMPTS for block in prompt})


def memories(num_blocks: int) -> dict[str, Memory]:
    return {
        "plain": PlainLru(num_blocks),
        "lru": Ordered("lru", num_blocks, LAYERS),
        "session": Ordered("session", num_blocks, LAYERS),
        "layer": Ordered("layer", num_blocks, LAYERS),
        "clairvoyant": Clairvoyant(num_blocks, PROMPTS),
    }


@pytest.mark.parametrize("num_blocks", [25, 60, 120])
def test_who_knows_all_keeps_most(num_blocks: int) -> None:
    found = {name: replay(each, PROMPTS, TIMES) for name, each in memories(num_blocks).items()}
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
        assert replay(memory, PROMPTS, TIMES) == pytest.approx(percent)


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


def test_run_tells_percents_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = tuple(
        mooncake.Request(at_ns, 512 * len(prompt), 1, prompt)
        for at_ns, prompt in zip(TIMES, PROMPTS, strict=True)
    )
    monkeypatch.setattr(mooncake, "load_requests", lambda: requests)
    monkeypatch.setattr(capacity, "why_absent", lambda name: "")
    result = run(["--tb", "0.002,inf", "--requests", "300"])
    assert result["requests"] == 300
    for percents in result["hit_percent"].values():
        assert 0 < percents["0.002"] < percents["inf"] == result["hit_percent"]["plain-lru"]["inf"]


def test_sizes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("0", "-1", "much", "nan"):
        with pytest.raises(InvalidRequest, match=f"--tb {text}: use numbers above 0"):
            run(["--tb", text])
    monkeypatch.setattr(capacity, "why_absent", lambda name: "not here")
    assert run([]) == {"skipped": "not here"}
