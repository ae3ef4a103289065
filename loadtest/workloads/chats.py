"""`sharegpt-like`: people who read and type, and `prefill-heavy`: the same with short answers.

The paper takes ShareGPT, of which only lengths are at hand. So people type what is in dialogues
that are written out (OpenAssistant's, MT-Bench-101's), and answers are as long as ShareGPT's; 73.4%
of the dialogues have several turns, as ShareGPT's have (SYMPHONY, Figure 3). ShareGPT's longest, of
more than 400 turns, have no counterpart: the longest here has seven.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from random import Random

from loadtest.typing_people import load_dialogues
from loadtest.workloads.people import draw_person, tokens_of
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn
from loadtest.workloads.traces import records_of, rows_of

SEVERAL_TURNS_SHARE = 0.734
HEAVY_PROMPT, HEAVY_ANSWER = 1024, 1  # tokens: section 4.5, prefill-heavy requests
LENGTHS = "text/sharegpt_turn_lengths_300.csv"
WRITTEN = "text/mt_bench_101.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Dialogues:
    """What there is to draw from.

    Attributes:
        single, several: words of each message of the dialogues with one message, and with more.
        answers: tokens.
    """

    single: tuple[tuple[int, ...], ...]
    several: tuple[tuple[int, ...], ...]
    answers: tuple[int, ...]

    def draw(self, rng: Random) -> tuple[int, ...]:
        """Words of each message of one."""
        is_long = rng.random() < SEVERAL_TURNS_SHARE
        return rng.choice(self.several if is_long else self.single)


@cache
def load() -> Dialogues:
    """All of the files."""
    told = [tuple(turn.said for turn in turns) for turns in load_dialogues()]
    told += [
        tuple(max(len(turn["user"].split()), 1) for turn in row["history"])
        for row in records_of(WRITTEN)
    ]
    return Dialogues(
        single=tuple(words for words in told if len(words) == 1),
        several=tuple(words for words in told if len(words) > 1),
        answers=tuple(int(row["output_tokens"]) for row in rows_of(LENGTHS)),
    )


def sharegpt_like(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """Everybody reads an answer, types, and sends, one dialogue after the other: as many turns as
    would fill the duration if answers took no time. They tell of a message when they begin to type.
    """
    dialogues = load()
    return [
        _one(f"user{number}", dialogues, duration_ns, Random(f"{seed}/chat/{number}"))
        for number in range(num_users)
    ]


def prefill_heavy(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """The same people at the same pace, but whatever they send has 1,024 tokens, and the answer one
    (SYMPHONY, section 4.5 and Figure 18)."""
    return [
        replace(script, turns=tuple(_heavy(turn) for turn in script.turns))
        for script in sharegpt_like(num_users, duration_ns, seed)
    ]


def _heavy(turn: ScriptedTurn) -> ScriptedTurn:
    parts = (Part(turn.parts[0].name, HEAVY_PROMPT),)
    return replace(turn, parts=parts, num_output=HEAVY_ANSWER)


def _one(name: str, dialogues: Dialogues, duration_ns: int, rng: Random) -> Script:
    person = draw_person(rng)
    turns: list[ScriptedTurn] = []
    reading_ns = elapsed_ns = 0
    for number in count():
        session = f"{name}/{number}"
        for place, said_words in enumerate(dialogues.draw(rng)):
            typing_ns = person.typing_ns(said_words)
            num_output = rng.choice(dialogues.answers)
            turns.append(
                ScriptedTurn(
                    session=session,
                    parts=(Part(f"{session}/{place}", tokens_of(said_words)),),
                    num_output=num_output,
                    after=(len(turns) - 1,) if turns else (),
                    wait_ns=reading_ns + typing_ns,
                    hint=Hint(lead_ns=typing_ns),
                )
            )
            elapsed_ns += reading_ns + typing_ns
            reading_ns = person.reading_ns(num_output)
            if len(turns) == 1:  # people are anywhere in their first cycle when this begins
                begins_ns = round(rng.random() * min(reading_ns + typing_ns, duration_ns))
                elapsed_ns += begins_ns
            if elapsed_ns >= duration_ns:
                return Script(name=name, turns=tuple(turns), begins_ns=begins_ns)
    raise AssertionError("dialogues never end")
