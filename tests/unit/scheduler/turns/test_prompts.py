"""Short prompts that go along with submits and starts, and starts that go together."""

import pytest

from services.scheduler.core import CancelTurn, Effect, StartTurn, StartTurns, merge_effects
from services.scheduler.core.turns import turn_table
from tests.unit.scheduler.turns.driver import SECOND, Driver, only


def prompts(effects: list[Effect]) -> list[str]:
    return [effect.start.prompt for effect in only(StartTurn, effects)]


def test_the_first_start_has_the_prompt_and_a_later_one_has_to_ask() -> None:
    d = Driver()
    d.report("w1")
    d.report("w2")
    assert prompts(d.submit("t", prompt="P")) == ["P"]
    assert prompts(d.submit("t", attempt=3)) == [""]
    assert d.submit("t", prompt="P") == []


def test_one_that_waited_has_it_when_it_is_placed() -> None:
    d = Driver()
    d.submit("t", prompt="P")
    assert prompts(d.report("w1")) == ["P"]


def test_a_turn_that_was_placed_before_has_to_ask_whatever_comes_late() -> None:
    d = Driver()
    d.report("w1", ("t", 4097))
    d.submit("t", prompt="P")  # the first one, overtaken
    effects = d.wake(SECOND)
    d.report("w2")
    effects += d.wake(SECOND)
    d.report("w2")
    effects += d.wake(SECOND)  # w1 is silent for too long
    assert prompts(effects) == [""]


def test_one_that_ended_unheard_has_to_ask() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.end("w1", "t")
    assert prompts(d.submit("t", prompt="P")) == [""]


def test_few_of_the_prompts_that_wait_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_table, "PROMPTS_WAITING_MAX", 2)
    d = Driver()
    for name in "abc":
        d.submit(name, prompt=name.upper())
    assert sorted(prompts(d.report("w1"))) == ["", "A", "B"]


def test_starts_at_one_worker_go_together_where_the_first_was() -> None:
    d = Driver()
    d.report("w1")
    d.report("w2")
    effects: list[Effect] = []
    for name in "abc":
        effects += d.submit(name)
    effects += d.cancel("a")
    sent = merge_effects(effects)
    starts = {e.worker_id: e.starts for e in only(StartTurns, sent)}
    assert {w: [s.start.turn_id for s in some] for w, some in starts.items()} == {
        "w1": ["a", "c"],
        "w2": ["b"],
    }
    assert only(StartTurn, sent) == []
    assert only(CancelTurn, sent) == only(CancelTurn, effects)
    assert sent.index(only(CancelTurn, sent)[0]) > 1
    assert [e for e in sent if not isinstance(e, StartTurns)] == [
        e for e in effects if not isinstance(e, StartTurn)
    ]
