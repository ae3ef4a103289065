"""People who read, type, delete and think, as chat traces have them: when each of them would send
an advisory, take it back, or send its message.

Dialogues are OpenAssistant's (words of each message), speeds those of published studies
(238 words a minute read, 52 typed), both from ``../shared/traces``.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import orjson

from cli.base.children import ROOT

TRACES = ROOT.parent / "shared" / "traces"
DIALOGUES = TRACES / "text" / "oasst_en_100_trees.jsonl.gz"
SPEEDS = TRACES / "human_speeds.csv"
READING = "silent reading, English non-fiction"
TYPING = "typing, desktop keyboard (transcription)"
SPREAD = 0.35  # of the logarithm of a person's speed: most read 175 to 300 words a minute
THINKING_S = 17.0  # the tenth percentile of BurstGPT's pauses, on top of reading; mean
DELETED_SHARE = 0.35  # of beginnings that are deleted again
TOLD_SHARE = 0.5  # of those: the page takes its advisory back
LEFT_SHARE = 0.1  # of beginnings after which a person leaves

Act = Literal["hint", "take back", "turn"]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Words a minute."""

    reading: float
    typing: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Words of a message, and of the answer to it."""

    said: int
    answered: int


def why_absent() -> str:
    """Which file is not there; empty: all are."""
    missing = [path.name for path in (DIALOGUES, SPEEDS) if not path.is_file()]
    return f"not in ../shared/traces: {', '.join(missing)}" if missing else ""


def load_speeds() -> Speeds:
    """As the studies found them."""
    with SPEEDS.open(newline="") as file:
        found = {row["quantity"]: row["mean"] for row in csv.DictReader(file)}
    return Speeds(float(found[READING]), float(found[TYPING]))


def load_dialogues() -> list[list[Turn]]:
    """Of each tree the longest path of answered messages."""
    with gzip.open(DIALOGUES) as file:
        trees = [orjson.loads(line) for line in file]
    return [turns for tree in trees if (turns := _turns(tree))]


def _turns(said: dict[str, Any]) -> list[Turn]:
    paths = []
    for reply in said["replies"]:
        rest = max((_turns(each) for each in reply["replies"]), key=len, default=[])
        paths.append([Turn(_words(said), _words(reply)), *rest])
    return max(paths, key=len, default=[])


def _words(message: dict[str, Any]) -> int:
    return max(len(str(message["text"]).split()), 1)


def live(
    turns: Sequence[Turn], speeds: Speeds, rng: Random, at_s: float
) -> Iterator[tuple[float, Act]]:
    """What one person does from `at_s` on, in order.

    An advisory goes out with the first letter of a message. A person may delete what stands there,
    think, and begin again, which sends another one.
    """
    reading = speeds.reading * rng.lognormvariate(0.0, SPREAD)
    typing = speeds.typing * rng.lognormvariate(0.0, SPREAD)
    for turn in turns:
        while True:
            yield at_s, "hint"
            if rng.random() < LEFT_SHARE / (1 + len(turns)):
                return
            if rng.random() >= DELETED_SHARE:
                break
            at_s += rng.uniform(0.1, 1.0) * turn.said / typing * 60
            if rng.random() < TOLD_SHARE:
                yield at_s, "take back"
            at_s += rng.expovariate(1 / THINKING_S)
        at_s += turn.said / typing * 60
        yield at_s, "turn"
        at_s += turn.answered / reading * 60 + rng.expovariate(1 / THINKING_S)
