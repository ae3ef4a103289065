"""What a request for text asks for, as plain values.

Each edge (chat, completions, responses, messages, NATS) makes one of these of its body, and no
stage behind that sees a body. What is impossible whatever model serves it was refused by then; what
depends on the model is checked by the stage that it concerns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from services.frontend.core.replies.choice import TextRules
from services.frontend.core.structures import Structure
from services.frontend.core.tools.forcing import CallRule
from services.frontend.http.request import Origin
from shared.ids import SessionId, TenantId
from shared.wire.messages import AgentRef

ActionName = Literal["fetch", "retain", "demote", "release"]
PLAIN_RULES = TextRules()
Message = dict[str, Any]  # as chat templates take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose turn it is: what separates one user's KV from another's."""

    tenant: TenantId
    session_id: SessionId | None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """How tokens are to be chosen. None: as the model's makers advise.

    Attributes:
        logit_bias: by token ids as they were written, which the model's vocabulary has to have.
        logprobs: of each token, so many of the likeliest; None: no log-probabilities.
        prompt_logprobs: the same of the prompt's tokens.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    allowed_token_ids: Sequence[int] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """How a prompt that is too long is cut.

    Attributes:
        keep: tokens that are kept; -1: as many as leave room for the reply.
        keep_start: the end is cut off, not the start.
    """

    keep: int
    keep_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be done for an action of `kv_hints`.

    Attributes:
        is_own: about the session of the request that it came with.
        is_wanted: the session's turn is coming, within `ttl_ms`; else it is not.
        duration_s: for so long it is to be kept; 0: not given.
    """

    action: ActionName
    session_id: str
    is_own: bool
    is_wanted: bool
    expected_arrival: float | None = None
    ttl_ms: int | None = None
    duration_s: float = 0.0

    @property
    def lets_go(self) -> bool:
        """Whether its KV need not be kept; what is demoted stays below."""
        return not self.is_wanted and self.action != "demote"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What schedulers and caches are to know.

    Attributes:
        kv_expiry_s: how long its KV outlives its last use; None: as the tenant has it.
        agent: whose turn it is; None: no agent's, or the request has no session.
        wishes: of `kv_hints`.
        num_ignored_hints: actions of those that mean nothing here.
    """

    priority: int | None = None
    kv_expiry_s: int | None = None
    agent: AgentRef | None = None
    wishes: Sequence[Wish] = ()
    num_ignored_hints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """All but what the prompt is made of.

    Attributes:
        model: as the request calls it; None: the only one.
        structure: what the reply is to look like; None: anything.
        max_tokens: of a reply; None: not given; 0: none, only the prompt is of interest.
        n: choices for each prompt.
        special: add what the model expects at a prompt's start.
        show_special: show special tokens of the reply.
        shows_tiers: usage says in which cache tiers the history was.
    """

    origin: Origin
    owner: Owner
    model: str | None
    adapter_id: str | None
    sampling: SamplingRequest
    turn: TurnRequest
    rules: TextRules = PLAIN_RULES
    structure: Structure | None = None
    max_tokens: int | None = None
    n: int = 1
    truncation: Truncation | None = None
    special: bool = False
    show_special: bool = False
    shows_tiers: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a message, and where in the request it is."""

    url: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template writes out.

    Attributes:
        images: of the messages, in their order.
        tools: as templates take them.
        variables: of the template, by the request's own words.
        effort: how much the model is to think; None: not given.
        verbosity: how much it is to say; None: not given.
        thinks: whether it is to think at all; None: not given.
        continue_final: the reply goes on with the last message.
    """

    messages: Sequence[Message]
    images: Sequence[Image] = ()
    tools: Sequence[dict[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    verbosity: str | None = None
    thinks: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final: bool = False


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """Tools that a reply may call.

    Attributes:
        rules: of each that may be called.
        calls_max: None: any number.
        is_forced: it has to call one.
    """

    rules: tuple[CallRule, ...]
    calls_max: int | None = None
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class ThoughtRequest:
    """What becomes of thoughts.

    Attributes:
        is_apart: they are separated from what is said.
        is_shown: those are handed on.
    """

    is_apart: bool = True
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat; `tools` None: the reply may call nothing."""

    generation: GenerationRequest
    conversation: Conversation
    tools: ToolRequest | None = None
    thoughts: ThoughtRequest = ThoughtRequest()


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Prompts, each a text or tokens; with `echo` their text is shown before the replies."""

    generation: GenerationRequest
    prompts: Sequence[str | list[int]]
    echo: bool = False
