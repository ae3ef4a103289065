"""Separates a model's reasoning from its answer.

| family | thinks |
|---|---|
| `qwen3` | between ``<think>`` and ``</think>``, if at all (Qwen 3, SmolLM 3, GLM, Hunyuan) |
| `deepseek_r1` | the same, and always: its prompts may open the thoughts |
| `mistral` | between ``[THINK]`` and ``[/THINK]`` (Magistral) |
| `seed_oss` | between ``<seed:think>`` and ``</seed:think>`` |
"""

from dataclasses import dataclass
from enum import Enum, auto

from services.frontend.core.tools.families import Said

SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a family of models marks its reasoning.

    Attributes:
        opening, closing: marks around it.
        is_always: replies begin with reasoning, unless the prompt ends with the closing mark.
    """

    name: str
    opening: str
    closing: str
    is_always: bool = False

    def begins_within(self, prompt: str) -> bool:
        """Whether the reply to this prompt begins within reasoning: not if the prompt closed it, as
        templates do where none is wanted.
        """
        prompt = prompt.rstrip(SPACE)
        if prompt.endswith(self.opening):
            return True
        return self.is_always and not prompt.endswith(self.closing)


FAMILIES = {
    thinking.name: thinking
    for thinking in (
        Thinking("qwen3", "<think>", "</think>"),
        Thinking("deepseek_r1", "<think>", "</think>", is_always=True),
        Thinking("mistral", "[THINK]", "[/THINK]"),
        Thinking("seed_oss", "<seed:think>", "</seed:think>"),
    )
}


def thinking_of(template: str) -> Thinking | None:
    """How a model with this chat template marks its reasoning; None: the template does not say.

    >>> thinking_of("{{ '</think>' }}").name, thinking_of("{{ messages }}")
    ('qwen3', None)
    """
    known = (each for each in FAMILIES.values() if not each.is_always)
    return next((each for each in known if each.closing in template), None)


class _At(Enum):
    """How far a reply was read, relative to its reasoning."""

    BEFORE = auto()  # nothing but space has come; a mark may
    AGAIN = auto()  # as that, and it begins in thoughts: some say again what the prompt ends with
    OPENED = auto()
    WITHIN = auto()
    CLOSED = auto()
    SAID = auto()  # all that comes is said


class ThoughtReader:
    """Reads a reply as it comes. Only its beginning may be reasoning: later marks are text.
    Line breaks around them belong to neither.

    Attributes:
        has_begun: reasoning has begun; it may have ended.
    """

    def __init__(self, thinking: Thinking, *, is_within: bool) -> None:
        self._thinking = thinking
        self._at = _At.AGAIN if is_within else _At.BEFORE
        self._held = ""  # may be of a mark, or space beside one
        self.has_begun = is_within

    @property
    def is_within(self) -> bool:
        """Whether reasoning has begun and not ended."""
        return self._at in {_At.AGAIN, _At.OPENED, _At.WITHIN}

    @property
    def is_over(self) -> bool:
        """Whether thoughts have ended, or there are none."""
        return self._at in {_At.CLOSED, _At.SAID}

    def feed(self, text: str) -> list[Thought | Said]:
        """Take more of the reply."""
        self._held += text
        parts: list[Thought | Said] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Thought | Said]:
        """The reply is over."""
        held, self._held = self._held, ""
        if self.is_within:
            self._at = _At.SAID
            return [Thought(thought)] if (thought := held.strip("\n")) else []
        return [Said(held)] if held else []

    def _step(self, parts: list[Thought | Said]) -> bool:
        """Whether there may be more to read in what is held."""
        held, opening, closing = self._held, self._thinking.opening, self._thinking.closing
        match self._at:
            case _At.BEFORE | _At.AGAIN:
                begin = held.lstrip(SPACE)
                if begin.startswith(opening):
                    self.has_begun = True
                    return self._go(_At.OPENED, begin.removeprefix(opening))
                if opening.startswith(begin):
                    return False
                if self._at is _At.AGAIN:
                    return self._go(_At.WITHIN, held.lstrip("\n"))
                return self._go(_At.SAID, held)
            case _At.OPENED:
                return self._go(_At.WITHIN if held.lstrip("\n") else self._at, held.lstrip("\n"))
            case _At.WITHIN:
                thought, mark, rest = held.partition(closing)
                if not mark:
                    thought = held[: len(held) - _num_of_mark(held, closing)]
                thought = thought.rstrip("\n")
                if thought:
                    parts.append(Thought(thought))
                if mark:
                    return self._go(_At.CLOSED, rest)
                return self._go(self._at, held[len(thought) :])
            case _At.CLOSED:
                return self._go(_At.SAID if held.lstrip(SPACE) else self._at, held.lstrip(SPACE))
            case _At.SAID:
                if held:
                    parts.append(Said(held))
                return self._go(self._at, "")

    def _go(self, at: _At, held: str) -> bool:
        """Whether that is somewhere else."""
        is_new = at is not self._at
        self._at, self._held = at, held
        return is_new


def _num_of_mark(text: str, mark: str) -> int:
    """How many of a text's last characters a mark may begin with.

    >>> _num_of_mark("so </th", "</think>"), _num_of_mark("so", "</think>")
    (4, 0)
    """
    longest = min(len(text), len(mark) - 1)
    return next((num for num in range(longest, 0, -1) if mark.startswith(text[-num:])), 0)
