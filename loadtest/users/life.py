"""What one person at a chat does, act by act, as a generator that is sent the answers.

Who reads 238 words a minute and types 52 has long pauses between turns, in which the KV of a
conversation can go to lower tiers and be brought back by the hint of a first keystroke. The rest is
what makes hints wrong or missing: people delete what they typed, go away, paste, and come back to
a conversation after another one.

All times are a person's; who runs this faster divides them.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from math import log
from random import Random

from loadtest.workloads.people import (
    DELETED_SHARE,
    SPREAD,
    TAKEN_BACK_SHARE,
    THINKING_S,
    TOKENS_A_WORD,
)

PASTING_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How people are; shares are chances.

    Attributes:
        reading_wpm, typing_wpm: words a minute, the median over people (`human_speeds.csv`).
        spread: of the logarithm of a person's own speed.
        thinking_s: between reading and typing, mean.
        pauses: of turns after which a person does something else for `pause_s`, the median.
        deletes: of beginnings that are deleted again; takes_back: of those, whose page says so.
        abandons: of messages that are begun and never sent; the person goes.
        pastes: of messages; hints_paste: of those, whose page hints as the text goes in.
        switches: of turns after which another conversation is taken up.
        returns: of conversations taken up, how many are an old one, if there is any.
        num_old_max: conversations to which a person may come back.
        context_tokens_max: a conversation that is so long is not gone on with.
    """

    reading_wpm: float = 238.0
    typing_wpm: float = 52.0
    spread: float = SPREAD
    thinking_s: float = THINKING_S
    pauses: float = 0.05
    pause_s: float = 180.0
    deletes: float = DELETED_SHARE
    takes_back: float = TAKEN_BACK_SHARE
    abandons: float = 0.03
    pastes: float = 0.1
    hints_paste: float = 0.5
    switches: float = 0.15
    returns: float = 0.5
    num_old_max: int = 8
    context_tokens_max: int = 100_000


@dataclass(frozen=True, slots=True)
class Said:
    """A message and the length of its recorded answer.

    Attributes:
        num_words: that are typed for it, which is fewer than it has where a document goes along.
        num_answer: tokens.
    """

    text: str
    num_words: int
    num_answer: int


Dialogue = tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Attributes:
    num_tokens: of the answer; num_context: of prompt and answer.
    is_whole: it came to its end.
    """

    num_tokens: int
    num_context: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing, for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hint:
    """A turn of this session is coming, `expected_in_s` from now; None: unknown when."""

    session: str
    expected_in_s: float | None


@dataclass(frozen=True, slots=True)
class TakeBack:
    """It is not, after all."""

    session: str


@dataclass(frozen=True, slots=True)
class Send:
    """The turn. The generator is sent its `Answer`.

    Attributes:
        is_hinted: it was announced, and that was not taken back.
    """

    session: str
    said: Said
    is_hinted: bool


@dataclass(frozen=True, slots=True)
class ComeBack:
    """An old conversation is taken up again."""

    session: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A message was begun and will never be sent. The last act."""

    session: str


Act = Wait | Hint | TakeBack | Send | ComeBack | Leave


@dataclass(slots=True)
class _Session:
    name: str
    left: deque[Said] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Person:
    """Words a minute."""

    reading: float
    typing: float


def live(
    name: str, habits: Habits, dialogues: Iterator[Dialogue], rng: Random, *, hints: bool
) -> Generator[Act, Answer | None, None]:
    """The acts of one person, without end unless they leave.

    Args:
        name: begins the names of the person's sessions.
        dialogues: what they will talk about, one conversation after the other.
        hints: their page announces turns.
    """
    person = _Person(
        habits.reading_wpm * rng.lognormvariate(0.0, habits.spread),
        habits.typing_wpm * rng.lognormvariate(0.0, habits.spread),
    )
    old: list[_Session] = []
    num_sessions = 0
    while True:
        if old and rng.random() < habits.returns:
            session = old.pop(rng.randrange(len(old)))
            yield ComeBack(session.name)
        else:
            session = _Session(f"{name}/{num_sessions}", deque(next(dialogues)))
            num_sessions += 1
        if (yield from _talk(session, person, habits, rng, hints)):
            return
        if session.left:
            old = [*old, session][-habits.num_old_max :]


def _talk(
    session: _Session, person: _Person, habits: Habits, rng: Random, hints: bool
) -> Generator[Act, Answer | None, bool]:
    """Turns of one conversation until it is put aside, over or broken; True: the person left."""
    while session.left:
        is_hinted = yield from _compose(session, person, habits, rng, hints)
        if is_hinted is None:
            return True
        answer = yield Send(session.name, session.left.popleft(), is_hinted)
        assert answer is not None, "a turn's sender passes its answer"
        if not answer.is_whole or answer.num_context >= habits.context_tokens_max:
            session.left.clear()
        yield Wait(answer.num_tokens / TOKENS_A_WORD / person.reading * 60)
        yield Wait(rng.expovariate(1 / habits.thinking_s))
        if rng.random() < habits.pauses:
            yield Wait(rng.lognormvariate(log(habits.pause_s), 1.0))
        if rng.random() < habits.switches:
            break
    return False


def _compose(
    session: _Session, person: _Person, habits: Habits, rng: Random, hints: bool
) -> Generator[Act, Answer | None, bool | None]:
    """Until the message stands there: whether it was announced, or None if the person left."""
    if rng.random() < habits.pastes:
        yield Wait(PASTING_S)
        if not hints or rng.random() >= habits.hints_paste:
            return False
        yield Hint(session.name, 0.0)
        return True
    typing_s = session.left[0].num_words / person.typing * 60
    while True:
        if hints:
            yield Hint(session.name, None)
        if rng.random() < habits.abandons:
            yield Wait(rng.random() * typing_s)
            yield Leave(session.name)
            return None
        if rng.random() >= habits.deletes:
            yield Wait(typing_s)
            return hints
        yield Wait(rng.uniform(0.1, 1.0) * typing_s)
        if hints and rng.random() < habits.takes_back:
            yield TakeBack(session.name)
        yield Wait(rng.expovariate(1 / habits.thinking_s))
