"""A turn on the wire: submitted, placed, pulled, streamed, ended.

The frontend owns the turn's text and tokens; the scheduler sees metadata only. A short prompt goes
along with the first submit and start, as a text that the scheduler does not read; any other is
pulled from the frontend by the worker. `attempt` fences: a pull or a token of a higher attempt
voids every delta of lower ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from shared.ids import (
    DEFAULT_TENANT,
    FrontendId,
    HostId,
    ModelId,
    SessionId,
    TenantId,
    TurnId,
    WorkerId,
)
from shared.wire.messages.adapters import AdapterRef
from shared.wire.messages.agents import AgentRef
from shared.wire.messages.kv import KvPlace

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Values are checked at the HTTP edge; see openai-compatible parameters
    in docs/api.md.
    """

    max_tokens: int  # generate at most so many
    temperature: float = 1.0  # 0: always the likeliest token
    top_p: float = 1.0  # draw from the likeliest tokens of this probability together; 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # none below this share of the likeliest's probability; 0: off
    repetition_penalty: float = 1.0  # divides logits of tokens in prompt and reply; 1: off
    presence_penalty: float = 0.0  # taken from logits of tokens in the reply
    frequency_penalty: float = 0.0  # the same, once for each time a token was generated
    # pairs of a token id and what is added to its logit
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    allowed_token_ids: list[int] = field(default_factory=list)  # empty: all
    seed: int | None = (
        None  # None: the frontend draws one, so that a re-placed turn samples the same tokens
    )
    stop_token_ids: list[int] = field(default_factory=list)  # in addition to the model's end tokens
    ignore_eos: bool = False  # go on after end tokens
    min_tokens: int = 0  # no end token before so many
    logprobs: int | None = None  # None: off; n: the chosen token's and the n likeliest
    prompt_logprobs: int | None = None  # null: off; n: of each prompt token and the n likeliest
    grammar: str = ""  # that the reply is held to, as llguidance writes them; empty: none
    # Marks in the reply behind which JSON comes whose objects' keys are kept from repeating, which
    # the grammar cannot; an empty text: it begins with JSON.
    json_after: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRef:
    """One attempt at one turn."""

    turn_id: TurnId
    attempt: int = 1
    num_generated: int = 0  # in reports: tokens of all attempts, as far as the worker knows
    adapter_hash: str = ""  # in reports: of the adapter that it runs on
    lora_rank: int = 0  # of that one


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSubmit:
    """Frontend to scheduler: place this turn. Published again with the same id if there is no
    answer; idempotent.
    """

    turn_id: TurnId
    frontend_id: FrontendId
    model_id: ModelId
    num_prompt_tokens: int
    max_tokens: int = 0  # of the reply; 0: not known
    attempt: int = 1  # highest attempt the frontend has seen; 1 on first submit
    tenant: TenantId = DEFAULT_TENANT
    session_id: SessionId | None = None
    priority: int = 0
    request_id: str = ""
    slo_ttft_ms: float | None = None  # target for the time to the first token; None: the default
    slo_tpot_ms: float | None = None  # for the mean time between further tokens; None: none
    prompt: str = ""  # a `Prompt` as JSON, if it is short and no attempt is known; for the worker
    adapter: AdapterRef | None = None  # None: the base model
    sent_to: WorkerId | None = None  # it keeps the session's place, and has attempt 1 already
    kv_at: dict[HostId, int] = field(default_factory=dict)  # leading blocks of its session by host
    agent: AgentRef | None = None  # whose turn it is, for the tracker
    trace: str = ""  # `shared.tracing`; a message holds many turns, so it is no header of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsSubmit:
    """Frontend to scheduler: what came in one pass of its event loop."""

    turns: list[TurnSubmit]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCancel:
    """Stop a turn: the client hung up or a stop string was met. Frontend to scheduler, scheduler to
    worker.

    Attributes:
        num_kept: how many of the turn's tokens, from the prompt's first on, its session's next turn
            goes on from and wants the KV of; 0: nothing goes on from it.
    """

    turn_id: TurnId
    attempt: int = 0  # this attempt and lower ones; 0: every attempt
    num_kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """Scheduler to worker, or frontend to the worker that keeps the session's place: run this
    turn.
    """

    turn_id: TurnId
    frontend_id: FrontendId
    model_id: ModelId
    num_prompt_tokens: int
    attempt: int = 1
    tenant: TenantId = DEFAULT_TENANT
    session_id: SessionId | None = None
    priority: int = 0
    request_id: str = ""
    slo_ttft_ms: float | None = None  # as in `TurnSubmit`
    slo_tpot_ms: float | None = None  # as in `TurnSubmit`
    was_lost: bool = False  # an earlier attempt was: report this one's first token at once
    adapter: AdapterRef | None = None  # as in `TurnSubmit`
    kv_at: dict[HostId, int] = field(default_factory=dict)  # as in `TurnSubmit`
    expected_as: SessionId | None = None  # its prefetch went by this name; None: by its session's
    prompt: str = ""  # as it was submitted, with the first attempt only; none: pull it
    trace: str = ""  # as in `TurnSubmit`


def start_of(
    submit: TurnSubmit,
    attempt: int,
    prompt: str = "",
    *,
    was_lost: bool = False,
    expected_as: SessionId | None = None,
) -> TurnStart:
    """An attempt at what was submitted."""
    return TurnStart(
        turn_id=submit.turn_id,
        frontend_id=submit.frontend_id,
        model_id=submit.model_id,
        num_prompt_tokens=submit.num_prompt_tokens,
        attempt=attempt,
        tenant=submit.tenant,
        session_id=submit.session_id,
        priority=submit.priority,
        request_id=submit.request_id,
        slo_ttft_ms=submit.slo_ttft_ms,
        slo_tpot_ms=submit.slo_tpot_ms,
        was_lost=was_lost,
        adapter=submit.adapter,
        kv_at=submit.kv_at,
        expected_as=expected_as,
        prompt=prompt,
        trace=submit.trace,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsStart:
    """Scheduler to worker: what was placed there at once."""

    turns: list[TurnStart]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """How one attempt ended on a worker."""

    turn_id: TurnId
    attempt: int
    reason: FinishReason  # how it ended
    num_generated: int = 0  # tokens of all attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsEnded:
    """Worker to scheduler, at most one a step."""

    turns: list[TurnEnd]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """Scheduler to frontend: the turn cannot be served (no worker, unknown model).

    Attributes:
        retry_after_s: how long a client should wait, if `http_status` is 503.
    """

    turn_id: TurnId
    code: str
    message: str
    http_status: int = 503
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPull:
    """Worker to frontend: give me these turns' prompts. A pull of attempt n voids all attempts
    below n.

    Attributes:
        is_ahead: it voids none: a turn that runs elsewhere may move here, and what it runs on is
            prefetched.
    """

    turns: list[TurnRef]
    is_ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPrefetched:
    """Worker to scheduler: what a `Prefetch` for a turn that runs elsewhere led to.

    Attributes:
        num_blocks: leading ones of the turn's tokens that are in the pool.
    """

    turn_id: TurnId
    worker_id: WorkerId
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One turn's tokens, or `gone` when the frontend no longer wants this attempt."""

    turn_id: TurnId
    attempt: int
    gone: bool = False  # the frontend no longer wants this attempt
    tokens: str = (
        ""  # packed int32: the prompt, then the tokens generated so far by earlier attempts
    )
    num_generated: int = 0  # how many of `tokens`, at the end, were generated
    num_history: int = 0  # how many, at the beginning, its session's last turn left the KV of
    cache_salt: str = ""  # KV is shared only among equal salts
    sampling: SamplingParams = SamplingParams(max_tokens=1)  # how to choose tokens
    is_private: bool = False  # its session was deleted since: nothing of it may stay
    expiry_s: int = 0  # how long its KV outlives its last use; 0: as every tier has it
    images: list[str] = field(default_factory=list)  # files, in base64, by their order in `tokens`


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReply:
    """Answer to `PromptPull`, in its order."""

    prompts: list[Prompt]  # one for each turn asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token's own, and the likeliest with theirs, best
    first.
    """

    token: int  # its id
    logprob: float | None  # None for a prompt's first token
    # pairs of token id and log-probability
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDelta:
    """New tokens of one turn. `index` counts generated tokens before this delta, so a gap or repeat
    shows.
    """

    turn_id: TurnId
    attempt: int
    index: int  # tokens generated before this delta
    tokens: list[int] = field(default_factory=list)  # the new ones
    finish: FinishReason | None = None  # why the turn is over; null: it goes on
    logprobs: list[TokenLogprobs] | None = None  # of each new token, if they were asked for
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the prompt's tokens; first delta only
    cached_tokens: int | None = (
        None  # prompt tokens not computed in this attempt; on its first delta only
    )
    cached_in: dict[KvPlace, int] = field(default_factory=dict)  # where those were at its coming
    queue_ns: int | None = None  # arrival at the worker to first prefill; first delta only
    prefill_ns: int | None = None  # first prefill to first token; first delta only
    prompt_tokens: int | None = None  # on the first delta, where images made them more
    code: str = ""  # with finish == "error"
    message: str = ""


NextToken = tuple[TurnId, int, int, int]  # turn, attempt, generated tokens before it, the token


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """Worker to frontend: everything one step made for this frontend's turns.

    Attributes:
        tokens: of turns that have one more token and nothing else to say, as most have; to be read
            behind `deltas`.
    """

    # tokens of turns with more to say than one token
    deltas: list[TurnDelta] = field(default_factory=list)
    tokens: list[NextToken] = field(default_factory=list)

    def all(self) -> Iterator[TurnDelta]:
        """All of it as deltas, in the order in which it is to be read."""
        yield from self.deltas
        for turn_id, attempt, index, token in self.tokens:
            yield TurnDelta(turn_id=turn_id, attempt=attempt, index=index, tokens=[token])


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForget:
    """A session was deleted. Workers drop the blocks that it made and those of `keys` (packed hex,
    of its record), and let what it runs leave none behind; frontends answer workers that ask later.
    """

    session_id: SessionId
    tenant: TenantId = DEFAULT_TENANT
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForgotten:
    """This worker has no block of the session any more, and none is in flight to a kvstore.

    Attributes:
        was_known: it had some, or a turn of it, which goes on to its end.
    """

    worker_id: WorkerId
    was_known: bool = False
