"""The life of a turn in the frontend that owns it.

A turn is submitted to the scheduler, runs on a worker, is streamed back as deltas, and ends. The
prompt and every token so far are kept here and outlive any worker: a later attempt pulls them and
continues where the last one stopped. Two rules make the stream exact on any network: a delta counts
only if it is of the current attempt, and only for tokens that directly follow those already taken.
A pull makes its attempt current and voids earlier ones. So does the first delta of an attempt that
needed no pull because its start carried a short prompt: such an attempt starts from the beginning
and repeats earlier tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.frontend.core.sessions.open_sessions import OpenSession
from services.frontend.core.turns.assignments import Assignments
from shared.ids import FrontendId, HostId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    AgentRef,
    FinishReason,
    KvPlace,
    NextToken,
    Prompt,
    PromptPull,
    PromptReply,
    SamplingParams,
    SessionPlaced,
    TokenLogprobs,
    TurnCancel,
    TurnDelta,
    TurnFailed,
    TurnRef,
    TurnStart,
    TurnSubmit,
    encode,
    pack_ints,
    start_of,
)

ENVELOPE_BYTES = 64  # of an answer around its prompts
NO_LIMIT = 1 << 62
TOKENS_BYTES = 16  # of three tokens in a prompt: they are base64
# HTTP status by a worker's error code; others are 500.
STATUS_OF = {
    "overloaded": 503,
    "no_capacity": 503,
    "adapter_unavailable": 503,
    "adapter_too_large": 400,
    "context_length_exceeded": 400,
    "grammar_failed": 400,
    "engine_refused": 400,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Attributes:
    untaken_ns: silence before a worker is known to have the prompt, after which the turn is
        submitted again.
    silent_ns: the same, afterwards.
    give_up_ns: silence of workers and scheduler, after which the turn fails.
    attempts_lost_max: attempts in a row that may break off without a new token before the turn
        fails.
    turn_ns_max: after this a turn fails.
    prompt_bytes_max: of a prompt that goes along with its first submit; some 9,000 tokens. To pull
        one costs all three services more than to pass it on.
    """

    untaken_ns: int = 3_000_000_000
    silent_ns: int = 10_000_000_000
    give_up_ns: int = 60_000_000_000
    attempts_lost_max: int = 8
    turn_ns_max: int = 3_600_000_000_000
    prompt_bytes_max: int = 49_152


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """A turn as the HTTP edge hands it over."""

    turn_id: TurnId
    model_id: ModelId
    prompt: Sequence[int]
    sampling: SamplingParams
    tenant: TenantId
    session_id: SessionId | None = None
    priority: int = 0
    request_id: str = ""
    cache_salt: str = ""
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    adapter: AdapterRef | None = None
    claim: OpenSession | None = None
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    num_history: int = 0
    images: Sequence[str] = ()
    agent: AgentRef | None = None
    kv_expiry_s: int = 0
    trace: str = ""

    @property
    def is_private(self) -> bool:
        """Whether its session was deleted since it began."""
        return self.claim is not None and self.claim.is_forgotten


@dataclass(frozen=True, slots=True)
class Submit:
    """Publish to the scheduler."""

    message: TurnSubmit


@dataclass(frozen=True, slots=True)
class Start:
    """Send the first attempt to the assigned worker; the submit before it names that worker."""

    worker_id: WorkerId
    message: TurnStart


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the turn at the scheduler."""

    message: TurnCancel


@dataclass(frozen=True, slots=True)
class AnswerPull:
    """Reply to the worker that pulled."""

    message: PromptReply


@dataclass(frozen=True, slots=True)
class AskScheduler:
    """Ping the scheduler; if it answers, call `Turns.on_scheduler_seen`."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The turn ended without an answer."""

    failure: TurnFailed

    @property
    def turn_id(self) -> TurnId:
        return self.failure.turn_id


@dataclass(frozen=True, slots=True)
class Deliver:
    """New tokens, each exactly once and in order; `finish` ends the turn."""

    turn_id: TurnId
    tokens: list[int]
    finish: FinishReason | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    cached_tokens: int | None = None
    cached_in: Mapping[KvPlace, int] = field(default_factory=dict)
    queue_ns: int | None = None
    prefill_ns: int | None = None
    prompt_tokens: int | None = None

    @property
    def num_entries(self) -> int:
        """Generated tokens, and alternatives with log-probabilities."""
        if self.logprobs is None:
            return len(self.tokens)
        return len(self.tokens) + sum(1 + len(entry.top) for entry in self.logprobs)


Effect = Submit | Start | Cancel | AnswerPull | AskScheduler | Fail | Deliver


@dataclass(slots=True)
class _Turn:
    new: NewTurn
    attempt: int
    began_at_ns: int
    submitted_at_ns: int
    news_at_ns: int
    is_taken: bool = False  # a worker has the prompt, as far as `attempt` goes
    is_sent_along: bool = False  # the first submit had the prompt with it
    generated: list[int] = field(default_factory=list)
    num_attempts_lost: int = 0  # since the last token
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # so far, of this attempt

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether a part of them was lost: they are all there before the first token is."""
        if self.new.sampling.prompt_logprobs is None or self.generated:
            return False
        return len(self.prompt_logprobs) != len(self.new.prompt)


def _prompt(turn: _Turn, ref: TurnRef) -> Prompt:
    return Prompt(
        turn_id=ref.turn_id,
        attempt=ref.attempt,
        tokens=pack_ints([*turn.new.prompt, *turn.generated]),
        num_generated=len(turn.generated),
        num_history=turn.new.num_history,
        cache_salt=turn.new.cache_salt,
        sampling=turn.new.sampling,
        is_private=turn.new.is_private,
        expiry_s=turn.new.kv_expiry_s,
        images=list(turn.new.images),
    )


def _short_prompt(turn: _Turn, bytes_max: int) -> str:
    """The prompt for a start message; empty if it is longer than that."""
    if turn.new.images or len(turn.new.prompt) * TOKENS_BYTES // 3 > bytes_max:
        return ""  # no need to encode it
    prompt = encode(_prompt(turn, TurnRef(turn_id=turn.new.turn_id)))
    return prompt.decode() if len(prompt) <= bytes_max else ""


def _take(turn: _Turn, attempt: int, now_ns: int) -> None:
    """A worker has the prompt for this attempt, the highest one so far."""
    turn.attempt = attempt
    turn.is_taken = True
    turn.prompt_logprobs = []
    turn.news_at_ns = now_ns


class Turns:
    """Every open turn of this frontend.

    Args:
        frontend_id: where workers send tokens.
        limits: timeouts and sizes.
    """

    def __init__(self, frontend_id: FrontendId, limits: TurnLimits) -> None:
        self._frontend_id = frontend_id
        self._limits = limits
        self._turns: dict[TurnId, _Turn] = {}
        self._assignments = Assignments()
        self._scheduler_seen_at_ns = 0

    def __len__(self) -> int:
        return len(self._turns)

    def on_new(self, new: NewTurn, now_ns: int) -> list[Effect]:
        """Submit a new turn, to its assigned worker if there is one."""
        assert new.turn_id not in self._turns, f"{new.turn_id} twice"
        turn = _Turn(new, attempt=1, began_at_ns=now_ns, submitted_at_ns=now_ns, news_at_ns=now_ns)
        self._turns[new.turn_id] = turn
        prompt = _short_prompt(turn, self._limits.prompt_bytes_max)
        turn.is_sent_along = bool(prompt)
        assigned = self._assignments.take(new.tenant, new.session_id, new.model_id, now_ns)
        if assigned is None:
            return [self._submit(turn, now_ns, prompt)]
        turn.new = replace(new, kv_at=assigned.located(new.kv_at))
        submit = self._submit(turn, now_ns, sent_to=assigned.worker_id)
        return [submit, Start(assigned.worker_id, start_of(submit.message, turn.attempt, prompt))]

    def on_placed(self, placed: SessionPlaced, now_ns: int) -> None:
        """The scheduler assigned a worker to a session's next turn."""
        self._assignments.on_placed(placed, now_ns)

    def on_pull(
        self, pull: PromptPull, now_ns: int, payload_bytes_max: int = NO_LIMIT
    ) -> list[Effect]:
        """A worker pulls prompts. An attempt that is void, or of a turn that ended, is `gone`.

        As many as fit the answer are in it; the worker asks again for the others, as if for the
        first time. One that fits no answer fails its turn. A pull ahead changes nothing.

        Args:
            payload_bytes_max: of one message.
        """
        prompts: list[Prompt] = []
        effects: list[Effect] = []
        room = payload_bytes_max - ENVELOPE_BYTES
        left = room
        for ref in pull.turns:
            turn = self._turns.get(ref.turn_id)
            prompt = Prompt(turn_id=ref.turn_id, attempt=ref.attempt, gone=True)
            if turn is not None and (pull.is_ahead or ref.attempt >= turn.attempt):
                whole = _prompt(turn, ref)
                num_bytes = len(encode(whole)) + 1
                if num_bytes <= room:
                    if num_bytes > left:
                        continue
                    prompt = whole
                    if not pull.is_ahead:
                        _take(turn, ref.attempt, now_ns)
                elif not pull.is_ahead:
                    why = f"the prompt takes {num_bytes} bytes: a message here takes {room}"
                    effects.append(self._fail(turn, "payload_too_large", why, 413))
            num_bytes = len(encode(prompt)) + 1
            if num_bytes > left:
                continue
            left -= num_bytes
            prompts.append(prompt)
        return [AnswerPull(PromptReply(prompts=prompts)), *effects]

    def on_delta(self, delta: TurnDelta, now_ns: int) -> list[Effect]:
        """A worker generated tokens. A gap before them means that the attempt lost some."""
        turn = self._turns.get(delta.turn_id)
        if turn is None or delta.attempt < turn.attempt:
            return []
        if delta.attempt > turn.attempt or not turn.is_taken:
            if not turn.is_sent_along or delta.finish == "cancelled":
                return []
            _take(turn, delta.attempt, now_ns)
        turn.news_at_ns = now_ns
        if delta.finish == "error":
            message = delta.message or "the worker could not serve this turn"
            code = delta.code or "worker_error"
            return [self._fail(turn, code, message, STATUS_OF.get(code, 500))]
        if not delta.tokens and delta.finish is None and delta.prompt_logprobs:
            turn.prompt_logprobs += delta.prompt_logprobs  # a part: the rest and a token follow
            return []
        num_known = len(turn.generated)
        if delta.index > num_known or delta.finish == "cancelled":
            return self._lose_attempt(turn, now_ns)
        num_repeated = num_known - delta.index
        said = turn.generated[delta.index :][: len(delta.tokens)]
        if delta.tokens[:num_repeated] != said:
            return self._lose_attempt(turn, now_ns)  # it goes on from something else
        if num_repeated > len(delta.tokens) or (
            num_repeated == len(delta.tokens) > 0 and delta.finish is None
        ):
            return []
        turn.prompt_logprobs += delta.prompt_logprobs or []
        if turn.lacks_prompt_logprobs:
            return self._lose_attempt(turn, now_ns)
        return [self._deliver(turn, delta, num_repeated)]

    def on_token(self, token: NextToken, now_ns: int) -> list[Effect]:
        """`on_delta` with one token and nothing else."""
        turn_id, attempt, index, value = token
        turn = self._turns.get(turn_id)
        if turn is None:
            return []
        is_next = turn.is_taken and attempt == turn.attempt and index == len(turn.generated)
        if not is_next or not index:
            delta = TurnDelta(turn_id=turn_id, attempt=attempt, index=index, tokens=[value])
            return self.on_delta(delta, now_ns)
        turn.news_at_ns = now_ns
        turn.generated.append(value)
        turn.num_attempts_lost = 0
        return [Deliver(turn_id, [value])]

    def on_failed(self, failure: TurnFailed) -> list[Effect]:
        """The scheduler gave up on this turn."""
        return [] if self._turns.pop(failure.turn_id, None) is None else [Fail(failure)]

    def on_cancel(self, turn_id: TurnId, num_kept: int = 0) -> list[Effect]:
        """The client is gone; unknown and ended turns are ignored.

        Args:
            num_kept: as of `TurnCancel`.
        """
        if self._turns.pop(turn_id, None) is None:
            return []
        return [Cancel(TurnCancel(turn_id=turn_id, num_kept=num_kept))]

    def on_stop(self) -> list[Effect]:
        """This frontend ends: fail all open turns."""
        effects: list[Effect] = []
        for turn in list(self._turns.values()):
            effects.append(self._fail(turn, "stopping", "this frontend is stopping"))
            effects.append(Cancel(TurnCancel(turn_id=turn.new.turn_id)))
        return effects

    def on_scheduler_seen(self, now_ns: int) -> None:
        """The scheduler answered: waiting turns are in its queue."""
        self._scheduler_seen_at_ns = now_ns

    def on_reconnect(self, now_ns: int) -> list[Effect]:
        """The bus was away: submits may be lost, so send them again."""
        return [self._submit(turn, now_ns) for turn in self._turns.values() if not turn.is_taken]

    def on_tick(self, now_ns: int) -> list[Effect]:
        """Submit silent turns again, and end those that take too long."""
        effects: list[Effect] = []
        limits = self._limits
        for turn in list(self._turns.values()):
            silent_since_ns = max(turn.news_at_ns, self._scheduler_seen_at_ns)
            silence_ns = limits.silent_ns if turn.is_taken else limits.untaken_ns
            if now_ns - turn.began_at_ns >= limits.turn_ns_max:
                message = f"the turn is not over after {limits.turn_ns_max / 1e9:g} s"
                effects.append(self._fail(turn, "turn_timeout", message, 504))
                effects.append(Cancel(TurnCancel(turn_id=turn.new.turn_id)))
            elif now_ns - silent_since_ns >= limits.give_up_ns:
                effects.append(self._fail(turn, "no_capacity", "no scheduler answers"))
                effects.append(Cancel(TurnCancel(turn_id=turn.new.turn_id)))
            elif now_ns - max(turn.news_at_ns, turn.submitted_at_ns) >= silence_ns:
                effects.append(self._submit(turn, now_ns))
        if effects:
            effects.append(AskScheduler())
        return effects

    def _submit(
        self, turn: _Turn, now_ns: int, prompt: str = "", sent_to: WorkerId | None = None
    ) -> Submit:
        turn.submitted_at_ns = now_ns
        new = turn.new
        return Submit(
            TurnSubmit(
                turn_id=new.turn_id,
                frontend_id=self._frontend_id,
                model_id=new.model_id,
                num_prompt_tokens=len(new.prompt),
                attempt=turn.attempt,
                tenant=new.tenant,
                session_id=new.session_id,
                priority=new.priority,
                request_id=new.request_id,
                slo_ttft_ms=new.slo_ttft_ms,
                slo_tpot_ms=new.slo_tpot_ms,
                prompt=prompt,
                adapter=new.adapter,
                sent_to=sent_to,
                kv_at=dict(new.kv_at),
                agent=new.agent,
                trace=new.trace,
            )
        )

    def _deliver(self, turn: _Turn, delta: TurnDelta, num_repeated: int) -> Deliver:
        fresh = delta.tokens[num_repeated:]
        prompt_logprobs = None if turn.generated else turn.prompt_logprobs or None
        turn.prompt_logprobs = []
        turn.generated += fresh
        if fresh:
            turn.num_attempts_lost = 0
        if delta.finish is not None:
            del self._turns[delta.turn_id]
        return Deliver(
            delta.turn_id,
            fresh,
            delta.finish,
            None if delta.logprobs is None else delta.logprobs[num_repeated:],
            prompt_logprobs,
            delta.cached_tokens,
            delta.cached_in,
            delta.queue_ns,
            delta.prefill_ns,
            delta.prompt_tokens,
        )

    def _lose_attempt(self, turn: _Turn, now_ns: int) -> list[Effect]:
        """Void the current attempt and ask for the next; the scheduler sees the higher number."""
        turn.num_attempts_lost += 1
        if turn.num_attempts_lost > self._limits.attempts_lost_max:
            turn_id = turn.new.turn_id
            failure = self._fail(turn, "attempts_exhausted", "the turn was lost too many times")
            return [failure, Cancel(TurnCancel(turn_id=turn_id))]
        turn.attempt += 1
        turn.is_taken = False
        return [self._submit(turn, now_ns)]

    def _fail(self, turn: _Turn, code: str, message: str, http_status: int = 503) -> Fail:
        turn_id = turn.new.turn_id
        del self._turns[turn_id]
        return Fail(
            TurnFailed(turn_id=turn_id, code=code, message=message, http_status=http_status)
        )
