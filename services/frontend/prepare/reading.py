"""How a reply is read: what is thought, what is said, and which tools are called."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.frontend.api.bodies import ChatBody
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.tools import Call, CallsOfChoice, Tools
from services.frontend.config import FrontendConfig
from services.frontend.core.choice import Piece
from services.frontend.core.thoughts import FAMILIES, Thinking, Thought, ThoughtReader
from services.frontend.core.tools import Argued, Said
from services.frontend.prepare.messages import chat_messages
from services.frontend.rendering.tokenizer import ModelTokenizer

PROMPT_END_CHARS = 256  # of a prompt, in which a mark of thoughts may be the last

Told = Thought | Said | Call | Argued


@dataclass(frozen=True, slots=True)
class Reading:
    """How replies to a prompt are read.

    Attributes:
        tools: that they may call; None: none.
        thinking: how they think; None: not that anybody knows.
        is_within: they begin in thoughts.
        is_apart: thoughts are told apart from what is said.
        shows_thoughts: those are handed on.
    """

    tools: Tools | None = None
    thinking: Thinking | None = None
    is_within: bool = False
    is_apart: bool = True
    shows_thoughts: bool = True

    @property
    def thoughts(self) -> Thinking | None:
        """How thoughts are found that are told apart; None: none are."""
        return self.thinking if self.is_apart else None

    @property
    def is_plain(self) -> bool:
        """Whether all of it is said."""
        return self.tools is None and self.thoughts is None

    @property
    def tells_thoughts(self) -> bool:
        """Whether they are told apart and handed on."""
        return self.thoughts is not None and self.shows_thoughts

    def marks(self) -> list[str]:
        """Marks that somebody has to see in the text."""
        marks = [] if self.tools is None else [self.tools.family.marker]
        return marks if self.thoughts is None else [*marks, self.thoughts.closing]


PLAIN = Reading()


def reading_of(
    body: ChatBody,
    tokenizer: ModelTokenizer,
    config: FrontendConfig,
    tools: Tools | None,
    text: str,
) -> Reading:
    """How replies to a chat are read.

    Args:
        text: the chat, as it was rendered.
    """
    thinking = FAMILIES.get(config.reasoning_parser, tokenizer.thinking)
    if thinking is None or config.reasoning_parser == "none":
        return Reading(tools)
    return Reading(
        tools,
        thinking,
        is_within=_begins_within(thinking, body, text),
        is_apart=body.separate_reasoning is not False,
        shows_thoughts=body.include_reasoning is not False,
    )


def _begins_within(thinking: Thinking, body: ChatBody, text: str) -> bool:
    """Whether replies begin in thoughts. What goes on with a message does so if that has not closed
    its own."""
    if not body.continue_final_message:
        return thinking.begins_within(text[-PROMPT_END_CHARS:])
    said = chat_messages(body.messages[-1:])[0]["content"]
    return thinking.closing not in said and said.lstrip().startswith(thinking.opening)


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
        """Whether thoughts are told apart in it."""
        return self._thoughts is not None

    def take(self, piece: Piece) -> Iterator[Told]:
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


def tell(generation: Generation, replies: Sequence[ReplyOfChoice]) -> None:
    """What was read of a request's choices up to now, as far as the request is asked for it."""
    first = replies[0]
    if first.calls is not None:
        generation.tools = first.calls.told_names
    if first.is_thinking:
        generation.num_thought_tokens = sum(reply.num_thought_tokens for reply in replies)
