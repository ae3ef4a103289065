"""Replies as they come: what is thought, what is said, and which tools are called."""

from collections.abc import Iterator, Sequence

from services.frontend.api.text.calls import Call, CallsOfChoice
from services.frontend.api.text.generation import Generation
from services.frontend.core.replies.choice import Piece
from services.frontend.core.replies.thoughts import Thought, ThoughtReader
from services.frontend.core.tools import Argued, Said
from services.frontend.prepare.reading import Reading

ReplyPart = Thought | Said | Call | Argued


class ReplyOfChoice:
    """One choice's reply as it comes.

    Attributes:
        calls: that were read in it; None: it may call nothing.
        num_thought_tokens: of its tokens, those that thoughts took, with their marks.
    """

    def __init__(self, reading: Reading) -> None:
        self._shows_thoughts = reading.shows_thoughts
        self.calls = None if reading.tools is None else CallsOfChoice(reading.tools)
        self.num_thought_tokens = 0
        self._num_unread_tokens = 0  # may be of a mark that begins thoughts
        self._thoughts = None
        if reading.thoughts is not None:
            self._thoughts = ThoughtReader(reading.thoughts, is_within=reading.is_within)

    @property
    def is_thinking(self) -> bool:
        """Whether thoughts are separated in it."""
        return self._thoughts is not None

    def take(self, piece: Piece) -> Iterator[ReplyPart]:
        """More of it: what is thought and said, calls that begin, and more of the last one's
        arguments.
        """
        is_over = piece.finish is not None
        said = piece.text
        if self._thoughts is not None:
            was_over = self._thoughts.is_over
            events = self._thoughts.feed(piece.text) + (self._thoughts.finish() if is_over else [])
            self._num_unread_tokens += len(piece.tokens)
            if self._thoughts.has_begun and not was_over:
                self.num_thought_tokens += self._num_unread_tokens
                self._num_unread_tokens = 0
            if self._shows_thoughts:
                yield from (event for event in events if isinstance(event, Thought))
            said = "".join(event.text for event in events if isinstance(event, Said))
        if self.calls is not None:
            yield from self.calls.take(said, is_over=is_over, is_cut=piece.is_cut)
        elif said:
            yield Said(said)


def report(generation: Generation, replies: Sequence[ReplyOfChoice]) -> None:
    """Hand a generation what was read of its choices up to now."""
    first = replies[0]
    if first.calls is not None:
        generation.tools = first.calls.first_names
    if first.is_thinking:
        generation.num_thought_tokens = sum(reply.num_thought_tokens for reply in replies)
