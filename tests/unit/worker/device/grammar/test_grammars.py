"""Which tokens grammars allow, whatever steps ask."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from services.worker.device.grammar import Asked, Grammars, Masks, Vocabulary, allows, masks
from services.worker.device.grammar import grammars as grammars_module
from services.worker.models.demo_model import NUM_LAYERS, VOCAB, make_demo_model
from shared.ids import TurnId
from shared.wire.grammar import byte_tokenizer, flaw_of, matcher_of, tokens_in
from shared.wire.sampling import GRAMMAR_BYTES_MAX
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.gpu.test_gpu_executor import gpu_executor
from tests.unit.worker.device.test_torch_executor import executor_of, prompt

END = 258  # of the demo model, whose other tokens below are bytes
LETTERS = LLMatcher.grammar_from_regex("ab(c|d)*")
SLOW = LLMatcher.grammar_from_regex("x((a{1000}){1000}){100}")
TURN = TurnId("t")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_demo_model(tmp_path_factory.mktemp("demo") / "model"))


@pytest.fixture
def grammars(source: str) -> Iterator[Grammars]:
    made = Grammars(Vocabulary(source, VOCAB, {END}))
    yield made
    made.close()


def masks_of(grammars: Grammars, *asked: Asked) -> Masks:
    found = grammars.begin(asked)
    for coming in found.coming.values():
        coming.result(30)  # however long it takes on a machine that stalls
    found.wait()
    return found


def allowed(grammars: Grammars, said: str, grammar: str = LETTERS, turn: TurnId = TURN) -> str:
    """What may follow, as text; $ is the end."""
    found = masks_of(grammars, Asked(0, turn, grammar, tokens(said)))
    assert not found.failed and not found.late
    told = np.flatnonzero(allows(found.ready[0], VOCAB)).tolist()
    return "".join("$" if token == END else chr(token) for token in told)


def compact(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def tokens(said: str) -> list[int]:
    return [END if char == "$" else ord(char) for char in said]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_turn_may_go_on_back_and_behind_the_end(grammars: Grammars, is_prepared: bool) -> None:
    if is_prepared:  # as it is before a turn begins
        assert grammars.prepare(LETTERS).result() == ""
    for said, follows in (
        ("", "a"), ("a", "b"), ("ab", "cd$"), ("abcd", "cd$"), ("abd", "cd$"), ("", "a"),
        ("abcc", "cd$"), ("abc$", "$"), ("abc$$", "$"), ("ab", "cd$"),
    ):  # fmt: skip
        assert allowed(grammars, said) == follows, said


def test_any_turns_in_any_order_are_told_what_one_that_begins_anew_is(source: str) -> None:
    rng = Random(7)
    one, grammar = (
        Grammars(Vocabulary(source, VOCAB, {END})),
        LLMatcher.grammar_from_json_schema(
            {"type": "object", "properties": {"a": {"enum": ["x", "xy", "z"]}}, "required": ["a"]}
        ),
    )
    said = {TurnId(f"t{number}"): list[int]() for number in range(4)}
    for _ in range(150):
        turn = rng.choice(list(said))
        if rng.random() < 0.1:
            del said[turn][rng.randrange(len(said[turn]) + 1) :]
        fresh = matcher_of(grammar, Vocabulary(source, VOCAB, {END}).tokenizer())
        assert fresh.consume_tokens(said[turn])
        wanted = tokens_in(fresh.compute_bitmask()).tolist()
        found = masks_of(one, Asked(3, turn, grammar, list(said[turn])))
        assert np.flatnonzero(allows(found.ready[3], VOCAB)).tolist() == wanted
        said[turn] = [] if wanted == [END] else [*said[turn], rng.choice(wanted)]
    one.close()


def test_what_is_not_within_the_grammar_fails_its_row_alone(grammars: Grammars) -> None:
    good = Asked(0, TurnId("good"), LETTERS, tokens("ab"))
    found = masks_of(grammars, Asked(1, TurnId("bad"), LETTERS, tokens("ax")), good)
    assert set(found.failed) == {1} and set(found.ready) == {0}
    assert "doesn't satisfy the grammar" in found.failed[1]


class Stuck:
    """Stands in for a grammar's matcher that takes as long as a test likes."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.has_begun, self.may_end = Event(), Event()

    def compute_bitmask(self) -> Any:
        self.has_begun.set()
        assert self.may_end.wait(30)
        return self._matcher.compute_bitmask()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def test_a_slow_grammar_is_late_and_keeps_nobody_waiting(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, good, behind = TurnId("slow"), TurnId("good"), TurnId("behind")
    for turn in (slow, good, behind):
        allowed(grammars, "", turn=turn)
        grammars._walks[turn].is_slow = False  # on a machine that stalls anybody may be
    grammars._walks[slow].matcher = stuck = Stuck(grammars._walks[slow].matcher)  # type: ignore[assignment]
    asked = [Asked(0, slow, LETTERS, tokens("abc")), Asked(1, good, LETTERS, tokens("abcd"))]
    asked.append(Asked(2, behind, LETTERS, tokens("a")))
    found = grammars.begin(asked)
    found.coming[1].result()
    assert stuck.has_begun.wait(30)
    monkeypatch.setattr(masks, "PATIENCE_S", 0.0)
    found.wait()
    assert set(found.ready) == {1} and found.late == {0, 2}
    monkeypatch.setattr(masks, "PATIENCE_S", 30.0)
    monkeypatch.setattr(grammars_module, "SLOW_S", 0.0)
    again = grammars.begin(asked[1:])
    again.wait()
    assert set(again.ready) == {1, 2}, "who stood behind it goes another way"
    retried = grammars.begin(asked[:1])
    assert retried.coming[0] is found.coming[0], "it is not begun anew"
    stuck.may_end.set()
    retried.wait()
    assert set(retried.ready) == {0} and grammars._walks[slow].is_slow
    assert set(masks_of(grammars, *asked).ready) == {0, 1, 2}


def test_a_turn_that_was_forgotten_is_followed_from_its_beginning(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars_module, "WALKS_MAX", 1)
    monkeypatch.setattr(grammars_module, "PREPARED_MAX", 1)
    other = LLMatcher.grammar_from_regex("[0-9]+")
    for said, digits in (("", ""), ("a", "1"), ("abc", "12")):
        assert allowed(grammars, said) == {"": "a", "a": "b", "abc": "cd$"}[said]
        assert "7" in allowed(grammars, digits, other, TurnId("other"))
    assert len(grammars._walks) == len(grammars._prepared) == 1


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (LLMatcher.grammar_from_regex("(a"), "unclosed group"),
        (LLMatcher.grammar_from_regex("((a{1000}){1000}){100}"), "too many expressions"),
        (LLMatcher.grammar_from_lark("start: foo"), "unknown name"),
        (LLMatcher.grammar_from_json_schema({"type": "cat"}), "Invalid type"),
        (LLMatcher.grammar_from_json_schema({"not": {"type": "string"}}), "not"),
        (LLMatcher.grammar_from_json_schema({"$ref": "http://127.0.0.1:9/x"}), "retriev"),
        (LLMatcher.grammar_from_json_schema({"enum": []}), "Unsatisfiable"),
        ("", "Empty"),
        ("x" * (GRAMMAR_BYTES_MAX + 1), "at most"),
    ],
)
def test_a_grammar_that_cannot_be_used_says_why(
    grammars: Grammars, grammar: str, reason: str
) -> None:
    for told in (grammars.prepare(grammar).result(), flaw_of(grammar, byte_tokenizer())):
        assert reason in told and len(told) < 500
    assert not grammars._prepared


LOOPS = " & ".join(f"/((.{{{n}}})*)/" for n in (2, 3, 5, 7, 11, 13, 17, 19, 23))
COSTLY = [
    LLMatcher.grammar_from_lark(f'start: X\nX: "q" | "abc" Y\nY: {LOOPS}'),
    LLMatcher.grammar_from_lark(
        "start: X\nX: /[a-f]*/ & ~/(.*a.{40}b.*)/ & ~/(.*c.{50}d.*)/ & ~/(.*e.{60}f.*)/"
    ),
    LLMatcher.grammar_from_lark('start: e\ne: e e e | "a"?'),
    LLMatcher.grammar_from_lark('start: (("a"{0,1000}){0,1000}){0,1000}'),
    LLMatcher.grammar_from_regex("(([a-f]{1,300}[a-c]){1,300}){1,300}"),
    LLMatcher.grammar_from_regex(r"(\p{L}{1,50}\p{N}{1,50}){1,50}"),
    LLMatcher.grammar_from_regex("a{1,1000000000}"),
]


@pytest.mark.parametrize("grammar", COSTLY)
def test_what_costs_on_the_way_ends_by_steps(grammars: Grammars, grammar: str) -> None:
    """It compiles, and goes on, or fails where the library has counted too much."""
    assert grammars.prepare(grammar).result(60) == ""
    said, rng = list[int](), Random(3)
    for _ in range(80):
        found = masks_of(grammars, Asked(0, TURN, grammar, said))
        found.coming[0].result(60)
        if 0 in found.failed:
            assert "too" in found.failed[0] or "max" in found.failed[0]
            break
        mask = found.coming[0].result().words
        letters = [t for t in np.flatnonzero(allows(mask, VOCAB)).tolist() if t != END]
        if not letters:
            break
        said = [*said, rng.choice([t for t in letters if chr(t) in "abcdef"] or letters)]


def test_a_model_whose_tokens_are_unknown_takes_no_grammar(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    grammars = Grammars(Vocabulary(str(tmp_path), VOCAB, {END}))
    assert "tokenizer" in grammars.prepare(LETTERS).result()
    grammars.close()


@pytest.mark.parametrize("steps_ahead_max", [0, 1])
@pytest.mark.parametrize("is_late", [False, True])
def test_executors_hold_turns_to_grammars(
    source: str, monkeypatch: pytest.MonkeyPatch, steps_ahead_max: int, is_late: bool
) -> None:
    """Both say the same, in any batch, with rows that are late and turns that are preempted."""
    if is_late:  # now and then nothing is ready, and the row is tried again
        rng, wait = Random(3), Masks.wait

        def impatient(self: Masks) -> None:
            monkeypatch.setattr(masks, "PATIENCE_S", 0.0 if rng.random() < 0.3 else 5.0)
            wait(self)

        monkeypatch.setattr(Masks, "wait", impatient)
    schema: Any = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 30}, "b": {"enum": [1, 2]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    wishes: list[dict[str, Any]] = [
        {"grammar": compact(schema), "max_tokens": 300},
        {"grammar": LLMatcher.grammar_from_regex("(xy){80}z"), "max_tokens": 200, "seed": 5},
        {"temperature": 1.0, "seed": 3, "ignore_eos": True, "max_tokens": 300},
        {"grammar": LLMatcher.grammar_from_regex("a{3,9}"), "min_tokens": 6, "ignore_eos": True},
        {"grammar": LLMatcher.grammar_from_regex("no|nobody"), "logprobs": 1, "min_tokens": 9},
    ]
    said, num_pages = list[list[list[int]]](), 7 * NUM_LAYERS
    for make in (executor_of, partial(gpu_executor, record=None)):
        with make(Path(source), num_pages=num_pages) as executor:
            limits = {"turns_running_max": 5, "steps_ahead_max": steps_ahead_max}
            driver = Driver(make_core(executor, **limits), executor)
            for number, wish in enumerate(wishes):
                tokens_of_prompt = prompt(number, 40 + 9 * number)
                driver.submit(str(number), tokens_of_prompt, **{"max_tokens": 60, **wish})
            driver.run()
            assert driver.core.planner.num_preemptions > 0
        said.append([driver.tokens(str(number)) for number in range(len(wishes))])
        assert not driver.core.turns
    assert said[0] == said[1]
    texts = [bytes(t for t in each if t < 256).decode(errors="replace") for each in said[0]]
    assert set(json.loads(texts[0])) == {"a", "b"}
    assert texts[1] == "xy" * 80 + "z"
    assert 6 <= len(texts[3]) <= 9 and set(texts[3]) == {"a"}
    assert texts[4] in {"no", "nobody"}


def test_a_grammar_that_fails_on_its_way_ends_its_turn_alone(source: str) -> None:
    for make in (executor_of, partial(gpu_executor, record=None)):
        with make(Path(source), num_pages=300) as executor:
            driver = Driver(make_core(executor, turns_running_max=5), executor)
            driver.submit("bad", prompt(1, 20), grammar=SLOW, max_tokens=9)
            driver.submit("good", prompt(2, 20), grammar=LETTERS, max_tokens=9)
            driver.run()
        last = driver.deltas["bad"][-1]
        assert (last.finish, last.code) == ("error", "grammar_failed") and last.message
        assert driver.deltas["good"][-1].finish in {"stop", "length"}
