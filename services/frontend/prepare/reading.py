"""How a reply is read: what is thought, what is said, and which tools are called."""

from dataclasses import dataclass

from services.frontend.config import FrontendConfig
from services.frontend.core.replies.thoughts import FAMILIES as THOUGHT_FAMILIES
from services.frontend.core.replies.thoughts import Thinking
from services.frontend.core.tools import FAMILIES, Family
from services.frontend.core.tools.forcing import CallRule
from services.frontend.prepare.requests import ChatRequest, Conversation
from services.frontend.rendering.tokenizer import ModelTokenizer

PROMPT_END_CHARS = 256  # of a prompt, in which a mark of thoughts may be the last


@dataclass(frozen=True, slots=True)
class Tools:
    """What a reply may call.

    Attributes:
        family: how its model writes calls.
        rules: of each tool that may be called.
        calls_max: None: any number.
        is_forced: it has to call one.
    """

    family: Family
    rules: tuple[CallRule, ...]
    calls_max: int | None = None
    is_forced: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(rule.name for rule in self.rules)

    @property
    def is_held(self) -> bool:
        """Whether calls that are not forced are constrained by a grammar: if some tool is strict,
        and a mark separates calls from text."""
        return self.family.is_marked and any(rule.is_strict for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Reading:
    """How replies to a prompt are read.

    Attributes:
        tools: that they may call; None: none.
        thinking: how they think; None: unknown.
        is_within: they begin in thoughts.
        is_apart: thoughts are separated from what is said.
        shows_thoughts: those are handed on.
    """

    tools: Tools | None = None
    thinking: Thinking | None = None
    is_within: bool = False
    is_apart: bool = True
    shows_thoughts: bool = True

    @property
    def thoughts(self) -> Thinking | None:
        """How thoughts are found that are separated; None: none are."""
        return self.thinking if self.is_apart else None

    @property
    def is_plain(self) -> bool:
        """Whether all of it is said."""
        return self.tools is None and self.thoughts is None

    @property
    def hands_on_thoughts(self) -> bool:
        """Whether they are separated and handed on."""
        return self.thoughts is not None and self.shows_thoughts

    def marks(self) -> list[str]:
        """Marks that have to be in the text for it to be read."""
        marks = [] if self.tools is None else [self.tools.family.marker]
        return marks if self.thoughts is None else [*marks, self.thoughts.closing]


PLAIN = Reading()


def reading_of(
    request: ChatRequest, tokenizer: ModelTokenizer, config: FrontendConfig, text: str
) -> Reading:
    """How replies to a chat are read.

    Args:
        text: the chat, as it was rendered.
    """
    may_call = None
    if (asked := request.tools) is not None:
        family = FAMILIES.get(config.tool_parser, tokenizer.tool_family)
        may_call = Tools(family, asked.rules, asked.calls_max, asked.is_forced)
    thinking = THOUGHT_FAMILIES.get(config.reasoning_parser, tokenizer.thinking)
    if thinking is None or config.reasoning_parser == "none":
        return Reading(may_call)
    return Reading(
        may_call,
        thinking,
        is_within=_begins_within(thinking, request.conversation, text),
        is_apart=request.thoughts.is_apart,
        shows_thoughts=request.thoughts.is_shown,
    )


def _begins_within(thinking: Thinking, conversation: Conversation, text: str) -> bool:
    """Whether replies begin in thoughts. What goes on with a message does so if that has not closed
    its own."""
    if not conversation.continue_final:
        return thinking.begins_within(text[-PROMPT_END_CHARS:])
    said = conversation.messages[-1]["content"]
    return thinking.closing not in said and said.lstrip().startswith(thinking.opening)
