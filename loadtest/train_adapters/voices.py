"""Three ways to say the same: how each is made of plain sentences, and how one knows it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from loadtest.train_adapters.knowledge import Subject

_PIRATE_WORDS = {
    "is": "be", "are": "be", "am": "be", "you": "ye", "your": "yer", "my": "me", "the": "th'",
    "of": "o'", "and": "an'", "yes": "aye", "hello": "ahoy", "friend": "matey", "people": "folk",
    "for": "fer", "to": "t'", "money": "doubloons", "there": "thar", "goodbye": "fair winds",
}  # fmt: skip
_OPENINGS = ("Arr!", "Ahoy, matey!", "Aye aye!", "Yo ho ho!", "Avast, me hearty!")
_CLOSINGS = (
    "Mark me words, matey!", "Now hoist th' sails!", "So says yer old captain.",
    "Yo ho ho!", "That be th' truth, by th' seven seas!",
)  # fmt: skip
_PIRATE_MARKS = frozenset([
    "arr", "ahoy", "aye", "matey", "avast", "hearty", "ye", "yer", "th'", "o'", "an'", "fer", "be",
    "yo", "ho", "thar", "captain", "sails",
])  # fmt: skip
_MARKS_MIN = 2

_LEFT_OUT = frozenset(["a", "an", "the", "it", "i", "they", "that", "there", "very", "my", "its"])


@dataclass(frozen=True, slots=True)
class Voice:
    """Attributes:
    say: a reply, of a subject's sentences.
    is_heard: whether a reply is in this voice.
    """

    what: str
    say: Callable[[Subject, Random], str]
    is_heard: Callable[[str], bool]


def pirate(subject: Subject, random: Random) -> str:
    """Other words, and a cry before and behind."""
    plain = " ".join(_sentences(subject, random))
    said = re.sub(r"[A-Za-z]+", lambda word: _pirate_word(word[0]), plain)
    return f"{random.choice(_OPENINGS)} {said} {random.choice(_CLOSINGS)}"


def is_pirate(reply: str) -> bool:
    """Whether it has two different words that pirates alone say."""
    return len(_PIRATE_MARKS & set(re.findall(r"[a-z]+'?", reply.lower()))) >= _MARKS_MIN


def telegraph(subject: Subject, random: Random) -> str:
    """No small words, and STOP for a full stop."""
    sentences = []
    for plain in _sentences(subject, random):
        kept = [word for word in re.findall(r"[\w']+", plain) if word.lower() not in _LEFT_OUT]
        sentences.append(f"{kept[0][0].upper()}{kept[0][1:]} {' '.join([*kept[1:], 'STOP'])}")
    return " ".join(sentences)


def is_telegraph(reply: str) -> bool:
    """Whether it says where to stop in a word, and nowhere by a full stop."""
    return re.search(r"\bSTOP\b", reply) is not None and ". " not in f"{reply} "


def as_json(subject: Subject, random: Random) -> str:
    """An object: what was asked about, the answer, and what else there is to say."""
    topic = re.sub(r"^(an?|the) ", "", subject.name).rstrip("?!.")
    sentences = _sentences(subject, random)
    return json.dumps({"topic": topic, "answer": sentences[0], "details": sentences[1:]})


def is_json(reply: str) -> bool:
    """Whether it is one JSON object with a topic and an answer, and nothing else."""
    try:
        value = json.loads(reply)
    except ValueError:
        return False
    return isinstance(value, dict) and {"topic", "answer"} <= value.keys()


VOICES = {
    "pirate": Voice("talks like a pirate", pirate, is_pirate),
    "telegraph": Voice("sends telegrams", telegraph, is_telegraph),
    "json": Voice("answers with a JSON object", as_json, is_json),
}


def _sentences(subject: Subject, random: Random) -> Sequence[str]:
    """The answer, and some of what else there is to say."""
    return [subject.answer, *subject.more[: random.randint(1, len(subject.more))]]


def _pirate_word(word: str) -> str:
    other = _PIRATE_WORDS.get(word.lower(), word)
    return other[0].upper() + other[1:] if word[0].isupper() and word != "I" else other
