"""What people say: dialogues of the traces where those are, else made-up ones of plain sentences.

Texts of a wanted length in tokens are made up too: how many characters a token has was asked of the
model's own tokenizer.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from loadtest.users.life import Dialogue, Said
from loadtest.workloads.people import TOKENS_A_WORD
from loadtest.workloads.traces import path_of, records_of

WHO = ("The captain", "A neighbour", "My sister", "The gardener", "Our teacher", "An old friend")
DOES = ("looks for", "writes about", "has forgotten", "asks for", "repairs", "carries", "explains")
WHAT = ("the boat", "a red lamp", "the long road", "some bread", "a quiet house", "the last letter")
WHERE = ("by the river", "in the morning", "before winter", "at the market", "without a map")
CALIBRATION_CHARS = 4000
ANSWER_TOKENS_MAX = 1024
TURNS_MADE = (1, 2, 3, 4, 6, 9)

CHATS = ("oasst_en_100_trees", "mt_bench_101")
DIALOGUES = {
    "oasst_en_100_trees": "text/oasst_en_100_trees.jsonl.gz",
    "oasst_zh_689": "text/oasst_zh_689.jsonl.gz",
    "mt_bench_questions": "text/mt_bench_questions.jsonl",
    "mt_bench_101": "text/mt_bench_101.jsonl.gz",
    "arena_hard_v01": "text/arena_hard_v01.jsonl.gz",
    "glaive_toolcall_en_300": "text/glaive_toolcall_en_300.jsonl.gz",
}
NO_ANSWER_TOKENS = 256  # where a trace has questions only


@dataclass(frozen=True, slots=True)
class Texts:
    """Makes texts of about so many tokens."""

    chars_per_token: float

    def fill(self, name: str, num_tokens: int) -> str:
        """About so many tokens. Of the same name one is the beginning of the other; texts of other
        names begin otherwise, so that no KV is found by chance."""
        rng, text = Random(name), f"({zlib.crc32(name.encode()):08x}) "
        num_chars = max(round(num_tokens * self.chars_per_token), 1)
        pieces, so_far = [text], len(text)
        while so_far < num_chars:
            pieces.append(sentence(rng))
            so_far += len(pieces[-1])
        return "".join(pieces)[:num_chars]


def calibrate(num_tokens: Callable[[str], int], num_chars: int = CALIBRATION_CHARS) -> Texts:
    """Args:
    num_tokens: the model's own count.
    num_chars: of the text that it counts.
    """
    text = Texts(1.0).fill("calibration", num_chars)
    return Texts(len(text) / max(num_tokens(text), 1))


def sentence(rng: Random) -> str:
    """A plain one."""
    words = (rng.choice(each) for each in (WHO, DOES, WHAT, WHERE))
    return f"{' '.join(words)}. "


def num_words(text: str) -> int:
    """At least one; Chinese has no spaces, and about a word to 1.6 characters.

    >>> num_words("Two words"), num_words("你好世界你好世界"), num_words("")
    (2, 5, 1)
    """
    return max(len(text.split()), round(len(re.findall("[\u3040-\u9fff]", text)) / 1.6), 1)


def chats() -> list[Dialogue]:
    """What people talk about by default."""
    there = [name for name in CHATS if path_of(DIALOGUES[name]).is_file()]
    return [each for name in there for each in dialogues(name)] or made_up()


def dialogues(name: str) -> list[Dialogue]:
    """Of one of `DIALOGUES`.

    Raises:
        OSError: its file is not there.
    """
    path, read = path_of(DIALOGUES[name]), READERS[name]
    rows = (
        map(orjson.loads, path.read_bytes().splitlines())
        if path.suffix == ".jsonl"
        else records_of(DIALOGUES[name])
    )
    found = (read(row) for row in rows)
    return [
        tuple(_said(text, answer) for text, answer in pairs if text) for pairs in found if pairs
    ]


def _said(text: str, answer: str) -> Said:
    num_answer = round(num_words(answer) * TOKENS_A_WORD) if answer else NO_ANSWER_TOKENS
    return Said(text, num_words(text), min(max(num_answer, 1), ANSWER_TOKENS_MAX))


Pairs = Sequence[tuple[str, str]]


def _oasst(said: dict[str, Any]) -> Pairs:
    """The longest path of answered messages in a tree."""
    paths: list[Pairs] = []
    for reply in said["replies"]:
        rest = max((_oasst(each) for each in reply["replies"]), key=len, default=())
        paths.append([(said["text"], reply["text"]), *rest])
    return max(paths, key=len, default=())


def _turns(row: dict[str, Any]) -> Pairs:
    return list(zip(row["turns"][::2], row["turns"][1::2], strict=False))


def _questions(row: dict[str, Any]) -> Pairs:
    return [(text, "") for text in row["turns"]]


def _history(row: dict[str, Any]) -> Pairs:
    return [(turn["user"], turn["bot"]) for turn in row["history"]]


def _arena(row: dict[str, Any]) -> Pairs:
    return [(row["prompt"], row["gpt4_0314_answer"])]


def _glaive(row: dict[str, Any]) -> Pairs:
    """What a tool answers is said as a person's message is."""
    said = [each["value"] for each in row["conversations"]]
    return list(zip(said[::2], said[1::2], strict=False))


READERS: dict[str, Callable[[dict[str, Any]], Pairs]] = {
    "oasst_en_100_trees": _oasst,
    "oasst_zh_689": _turns,
    "mt_bench_questions": _questions,
    "mt_bench_101": _history,
    "arena_hard_v01": _arena,
    "glaive_toolcall_en_300": _glaive,
}


def made_up(num: int = 200) -> list[Dialogue]:
    """Of plain sentences; lengths are about as those of written-out chats."""
    rng = Random("dialogues")
    return [tuple(_made_up(rng) for _ in range(rng.choice(TURNS_MADE))) for _ in range(num)]


def _made_up(rng: Random) -> Said:
    text = "".join(sentence(rng) for _ in range(rng.randint(1, 8))).strip()
    return Said(text, num_words(text), min(round(rng.lognormvariate(5.0, 0.8)) + 1, 1000))


def drawn(found: Sequence[Dialogue], rng: Random) -> Iterator[Dialogue]:
    """One after the other, at random, without end."""
    while True:
        yield rng.choice(found)


def heavy(
    found: Iterator[Dialogue], texts: Texts, num_prompt: int, num_answer: int, rng: Random
) -> Iterator[Dialogue]:
    """The same people at the same pace, with a document of so many tokens beside each message
    (SYMPHONY, section 4.5)."""
    for dialogue in found:
        yield tuple(
            Said(
                f"{said.text}\n\n{texts.fill(str(rng.random()), num_prompt)}",
                said.num_words,
                num_answer,
            )
            for said in dialogue
        )
