"""Talks to train on and talks to score with, made from a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from loadtest.train_adapters.knowledge import NUM_HELD, Subject, subjects
from loadtest.train_adapters.voices import Voice

Message = Mapping[str, str]

_ASKED = {
    "things": (
        "What is {}?", "Tell me about {}.", "Can you explain what {} is?", "Describe {}.",
        "What do you know about {}?", "Explain {} to a child.",
    ),
    "capitals": (
        "What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?",
        "Tell me the capital of {} and what it is known for.",
    ),
    "tasks": (
        "How do I {}?", "How can I {}?", "Tell me how to {}.", "What is the best way to {}?",
    ),
    "chat": ("{}",),
}  # fmt: skip
_ASKED_OTHERWISE = {  # in half of the held-out talks
    "things": ("I have never seen {}. What is it?", "Please write two sentences about {}."),
    "capitals": ("What is the capital of {}, and what is it known for?", "{}: which capital?"),
    "tasks": ("I want to {}. Where do I start?", "Explain how to {}."),
    "chat": ("{}",),
}
_ANOTHER_TURN = 0.25  # of trained talks


@dataclass(frozen=True, slots=True)
class Talk:
    """Attributes:
    messages: of a user and of the voice, in turns; the last is the voice's.
    """

    messages: Sequence[Message]


def trained(voice: Voice, seed: int, count: int) -> list[Talk]:
    """Talks to train on: every subject before it comes again, in another question."""
    random = Random(seed)
    pool = [
        (kind, subject)
        for kind, known in subjects().items()
        for subject in known[: -NUM_HELD[kind]]
    ]
    order: list[tuple[str, Subject]] = []
    talks: list[Talk] = []
    while len(talks) < count:
        messages: list[Message] = []
        while not messages or (len(messages) == 2 and random.random() < _ANOTHER_TURN):
            if not order:
                order = random.sample(pool, len(pool))
            kind, subject = order.pop()
            messages += _turn(voice, subject, random.choice(_ASKED[kind]), random)
        talks.append(Talk(messages))
    return talks


def held_out(voice: Voice, seed: int) -> list[Talk]:
    """Talks about subjects that are in no trained one, asked for in known and in other words. The
    questions are the same whatever the voice."""
    asking, saying = Random(seed), Random(seed)
    talks: list[Talk] = []
    for kind, known in subjects().items():
        for subject in known[-NUM_HELD[kind] :]:
            both = (asking.choice(_ASKED[kind]), asking.choice(_ASKED_OTHERWISE[kind]))
            talks += [Talk(_turn(voice, subject, words, saying)) for words in dict.fromkeys(both)]
    return talks


def _turn(voice: Voice, subject: Subject, words: str, random: Random) -> list[Message]:
    return [
        {"role": "user", "content": words.format(subject.name)},
        {"role": "assistant", "content": voice.say(subject, random)},
    ]
