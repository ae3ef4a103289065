"""`sharegpt-like`: people who read and type. `sharegpt-busy`: who only type.

The paper takes ShareGPT, of which only lengths are at hand. So people type what is in dialogues
that are written out (OpenAssistant's, MT-Bench-101's), and answers are as long as ShareGPT's; 73.4%
of the dialogues have several turns, as ShareGPT's have (SYMPHONY, Figure 3), and those have as many
as BurstGPT's sessions with several. That comes to 2.4 K tokens a session, where the paper has 2.2.
ShareGPT's longest, of more than 400 turns, have no counterpart: the longest here has 24.

Who reads 238 words a minute reads a token in 190 ms, and an answer comes at 20 ms a token: so at
most one in ten of those who read is being answered (Little's law). The paper has GPUs that are
300 requests apart among 1,024 users; so its users cannot have read for so long. `sharegpt-busy` is
for its numbers of users, and for short runs: a session's next turn comes soon.
"""

from dataclasses import dataclass
from functools import cache
from itertools import count
from random import Random
from typing import Any

from loadtest.workloads.burstgpt import load_sessions
from loadtest.workloads.people import draw_person, tokens_of
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn
from loadtest.workloads.traces import records_of, rows_of

SEVERAL_TURNS_SHARE = 0.734
ANSWER_MS_A_TOKEN = 20.0  # of the first cycle; the paper's TPOT at load
BEGIN_NS = 60_000_000_000  # at least; or all would bring their texts at once
HEAVY_PROMPT, HEAVY_ANSWER = 1024, 1  # tokens: section 4.5, prefill-heavy requests
LENGTHS = "text/sharegpt_turn_lengths_300.csv"
WRITTEN = "text/mt_bench_101.jsonl.gz"
DIALOGUES = "text/oasst_en_100_trees.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Dialogues:
    """What there is to draw from.

    Attributes:
        written: words of each message of each dialogue.
        num_turns: of dialogues with several.
        answers: tokens.
    """

    written: tuple[tuple[int, ...], ...]
    num_turns: tuple[int, ...]
    answers: tuple[int, ...]

    def draw(self, rng: Random) -> tuple[int, ...]:
        """Words of each message of one; a long one is put together from several written ones."""
        num_turns = rng.choice(self.num_turns) if rng.random() < SEVERAL_TURNS_SHARE else 1
        words: tuple[int, ...] = ()
        while len(words) < num_turns:
            words += rng.choice(self.written)
        return words[:num_turns]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Words of a message, and of the answer to it."""

    said: int
    answered: int


def load_dialogues() -> list[list[Exchange]]:
    """Of each of OpenAssistant's trees the longest path of answered messages."""
    return [exchanges for tree in records_of(DIALOGUES) if (exchanges := _exchanges(tree))]


def _exchanges(said: dict[str, Any]) -> list[Exchange]:
    paths = []
    for reply in said["replies"]:
        rest = max((_exchanges(each) for each in reply["replies"]), key=len, default=[])
        paths.append([Exchange(_words(said), _words(reply)), *rest])
    return max(paths, key=len, default=[])


def _words(message: dict[str, Any]) -> int:
    return max(len(str(message["text"]).split()), 1)


@cache
def load() -> Dialogues:
    """All of the files."""
    written = [tuple(turn.said for turn in turns) for turns in load_dialogues()]
    written += [
        tuple(max(len(turn["user"].split()), 1) for turn in row["history"])
        for row in records_of(WRITTEN)
    ]
    return Dialogues(
        written=tuple(written),
        num_turns=tuple(len(each) for each in load_sessions() if len(each) > 1),
        answers=tuple(int(row["output_tokens"]) for row in rows_of(LENGTHS)),
    )


def sharegpt_like(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """Everybody reads an answer, types, and sends, one dialogue after the other: as many turns as
    would fill the duration if answers took no time. They announce a message when they begin to
    type. All are somewhere in a dialogue, whose text their first turn brings with it.
    """
    return _people(num_users, duration_ns, seed, reads=True)


def sharegpt_busy(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """The same people, who begin to type when they have their answer."""
    return _people(num_users, duration_ns, seed, reads=False)


def _people(num_users: int, duration_ns: int, seed: int, *, reads: bool) -> list[Script]:
    dialogues = load()
    return [
        _one(f"user{number}", dialogues, duration_ns, Random(f"{seed}/chat/{number}"), reads)
        for number in range(num_users)
    ]


def _one(name: str, dialogues: Dialogues, duration_ns: int, rng: Random, reads: bool) -> Script:
    person = draw_person(rng)
    turns: list[ScriptedTurn] = []
    reading_ns = elapsed_ns = 0
    for number in count():
        session, words = f"{name}/{number}", dialogues.draw(rng)
        begin = 0 if turns else rng.randrange(len(words))
        for place, said_words in enumerate(words[begin:], begin):
            typing_ns = person.typing_ns(said_words)
            num_output = rng.choice(dialogues.answers)
            parts = [Part(f"{session}/{place}", tokens_of(said_words))]
            if place and place == begin:
                before = sum(
                    tokens_of(each) + rng.choice(dialogues.answers) for each in words[:place]
                )
                parts.insert(0, Part(f"{session}/before", before))
            turns.append(
                ScriptedTurn(
                    session=session,
                    parts=tuple(parts),
                    num_output=num_output,
                    after=(len(turns) - 1,) if turns else (),
                    wait_ns=reading_ns + typing_ns,
                    hint=Hint(lead_ns=typing_ns),
                )
            )
            elapsed_ns += reading_ns + typing_ns
            reading_ns = person.reading_ns(num_output) if reads else 0
            if len(turns) == 1:  # people are anywhere in their first cycle when this begins
                cycle_ns = typing_ns + round(num_output * ANSWER_MS_A_TOKEN * 1e6) + reading_ns
                within_ns = min(max(cycle_ns, BEGIN_NS), duration_ns // 3)
                begins_ns = round(rng.random() * within_ns)
                elapsed_ns += begins_ns
            if elapsed_ns >= duration_ns:
                return Script(name=name, turns=tuple(turns), begins_ns=begins_ns)
    raise AssertionError("dialogues never end")
