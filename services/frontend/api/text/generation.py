"""One request for text, from tokenized prompts to pieces of its choices.

Chat, completions and the NATS endpoint differ in what they read and how they write; all that lies
between is here.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from services.frontend import telemetry
from services.frontend.access import note
from services.frontend.advising import carry_out
from services.frontend.api.kv_hints import Wish
from services.frontend.app import App
from services.frontend.core.capacity import HeldCapacity
from services.frontend.core.choice import Choice, Piece, TextRules
from services.frontend.core.quotas import Admission
from services.frontend.core.turns import Deliver, Fail, NewTurn
from services.frontend.errors import TooManyRequests, TurnError
from services.frontend.hub import Mailbox
from services.frontend.models import ServedModel
from services.frontend.prepare.tokenize import (
    Owner,
    Reply,
    TokenizedPrompt,
    num_computed,
    remember,
)
from shared.blocks import PREFIX_BLOCKS_MAX, pack_keys
from shared.errors import InvalidRequest
from shared.ids import ModelId, TurnId, new_id
from shared.locations import known_places
from shared.messages import AgentRef, AgentTurnLeft, KvPlace, SamplingParams
from shared.shards import expected_as, turn_id_in
from shared.tracing import NO_SPAN, Span, Value

SEEDS = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be generated: for each prompt `n` choices, choice numbers in that order.

    Attributes:
        samplings: one a prompt (their room for output differs).
        show_special: decode special tokens too.
        wishes: of the request's `kv_hints`; `place`: where it came from.
        asked_model: as the request calls it.
        kv_expiry_s: how long its KV outlives its last use; 0: as every tier has it.
        tells_places: its usage says where history was.
        span: of the request.
    """

    model: ServedModel
    owner: Owner
    prompts: list[TokenizedPrompt]
    samplings: list[SamplingParams]
    n: int
    rules: TextRules
    priority: int = 0
    show_special: bool = False
    request_id: str = ""
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    agent: AgentRef | None = None
    wishes: Sequence[Wish] = ()
    place: str = ""
    asked_model: ModelId
    kv_expiry_s: int = 0
    tells_places: bool = False
    span: Span = NO_SPAN


@dataclass(slots=True)
class _Times:
    """Instants of one choice, ns; None until they come."""

    first_at_ns: int | None = None
    last_at_ns: int = 0


class Generation:
    """The turns of one request. A context: leaving it cancels whatever still runs.

    Attributes:
        created_s: wall-clock seconds.
        mailbox: tell it when the client hangs up.
        tools: names of those that the reply calls, for whoever reads calls in it.
        num_thought_tokens: of thoughts, for whoever reads them; None: nobody does.
    """

    def __init__(self, app: App, plan: Plan) -> None:
        self._app = app
        self.gates = app.gates
        self.plan = plan
        self.mailbox = Mailbox()
        self.tools: list[str] = []
        self.num_thought_tokens: int | None = None
        tokenizer = plan.model.tokenizer
        decode = tokenizer.decode_all if plan.show_special else tokenizer.decode
        self.choices = [
            Choice(index, decode, self.prompt_of(index).tokens, plan.rules)
            for index in range(len(plan.prompts) * plan.n)
        ]
        self._times = [_Times() for _ in self.choices]
        self._turn_ids: list[TurnId] = []
        self._spans: list[Span] = []
        self._num_running = len(self.choices)
        self._started_at_ns = app.clock.now_ns()
        self.created_s = app.clock.wall_ns() // 1_000_000_000
        prompts = [len(self.prompt_of(index).tokens) for index in range(len(self.choices))]
        self._admission = Admission(app.quotas, plan.owner.tenant, prompts)
        self._taken = ExitStack()
        self._offered: HeldCapacity | None = None
        self._held: HeldCapacity | None = None

    def keep(self, held: HeldCapacity) -> None:
        """The prompt is built: the body's room is given back now, or at the end of the generation
        if a session's record is to keep the text.
        """
        if self.plan.owner.session_id is None:
            held.give_back()
        else:
            self._offered = held

    def __enter__(self) -> "Generation":
        slots, num_choices = self._app.slots, len(self.choices)
        if num_choices > slots.num_max:
            raise InvalidRequest(
                f"n: more choices than the {slots.num_max} that are generated at once here", "n"
            )
        with ExitStack() as taken:
            taken.enter_context(self._admission)
            if not slots.take(num_choices):
                raise TooManyRequests("too many choices at once")
            taken.callback(slots.give, num_choices)
            self._taken = taken.pop_all()
        if self._offered is not None:
            self._held = self._offered.move()
        if (owner := self.plan.owner).session_id is not None:
            self._app.hints.on_turn(owner.tenant)
        telemetry.RUNNING.inc()
        telemetry.PROMPT_TOKENS.inc(sum(len(prompt.tokens) for prompt in self.plan.prompts))
        span, now_ns = self.plan.span, self._app.clock.now_ns()
        span.add("prepare", span.began_ns, now_ns)
        for index in range(len(self.choices)):
            self._spans.append(span.begin("turn", now_ns))
            new = self._turn(index)
            self._turn_ids.append(new.turn_id)
            self._app.hub.open(new, self.mailbox, index)
        self._carry_out([wish for wish in self.plan.wishes if not wish.is_own])
        return self

    def __exit__(self, *_: object) -> None:
        self._taken.close()
        if self._held is not None:
            self._held.give_back()
        telemetry.RUNNING.dec()
        self._note()
        for choice, turn_id in zip(self.choices, self._turn_ids, strict=True):
            if choice.finish is None:
                telemetry.FINISHED["abort"].inc()
                self._app.hub.cancel(turn_id)
                self._end_span(choice.index)
        self._tell_agent_left()
        self._carry_out([wish for wish in self.plan.wishes if wish.is_own])

    def prompt_of(self, index: int) -> TokenizedPrompt:
        """The prompt of choice `index`."""
        return self.plan.prompts[index // self.plan.n]

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """All choices' pieces as they come, everything that came together in one list.

        The session's record is stored before the piece that ends choice 0 is handed out, so that
        a client that has seen the end finds the record at its next turn.

        Raises:
            TurnError: a turn cannot be served.
            ClientGone: the client hung up.
        """
        while self._num_running:
            pieces: list[Piece] = []
            for index, event in await self.mailbox.take():
                if isinstance(event, Fail):
                    if pieces:
                        yield pieces
                    raise TurnError(event.failure)
                choice = self.choices[index]
                if choice.finish is not None:
                    continue  # the worker had gone on beyond a stop string
                piece = choice.on_deliver(event)
                self._measure(index, event)
                if piece.finish is not None:
                    await self._end(index, piece)
                pieces.append(piece)
            if pieces:
                yield pieces

    def usage(self, num_completion: int | None = None) -> dict[str, object]:
        """Token counts in OpenAI's shape, of all that came or of `num_completion` tokens."""
        num_prompt = sum(len(prompt.tokens) for prompt in self.plan.prompts)
        if num_completion is None:
            num_completion = sum(choice.num_completion_tokens for choice in self.choices)
        usage: dict[str, object] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": self._num_cached()},
        }
        if self.plan.tells_places:
            details = {"cached_tokens": self._num_cached(), "cached_tokens_details": self._places()}
            usage["prompt_tokens_details"] = details
        if self.num_thought_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.num_thought_tokens}
        return usage

    def _num_cached(self) -> int:
        """Prompt tokens that were not computed, of each prompt once."""
        return sum(choice.cached_tokens for choice in self.choices[:: self.plan.n])

    def _places(self) -> dict[KvPlace, int]:
        """Where those were when the turns came."""
        told: Counter[KvPlace] = Counter()
        for choice in self.choices[:: self.plan.n]:
            told.update(choice.cached_in)
        return dict(told)

    def _turn(self, index: int) -> NewTurn:
        plan = self.plan
        prompt, sampling = self.prompt_of(index), plan.samplings[index // plan.n]
        assert sampling.seed is not None
        if index:
            sampling = replace(sampling, seed=(sampling.seed + index) % SEEDS)
        agent = plan.agent if index == 0 else None
        is_new = not (known_places(prompt.kv_at) or prompt.num_history)
        expected = expected_as(plan.owner.session_id, agent, is_new=is_new)
        return NewTurn(
            turn_id=turn_id_in(new_id("turn"), plan.owner.tenant, expected),
            model_id=plan.model.card.model_id,
            prompt=prompt.tokens,
            sampling=sampling,
            tenant=plan.owner.tenant,
            session_id=plan.owner.session_id,
            priority=plan.priority,
            request_id=plan.request_id,
            cache_salt=plan.owner.cache_salt,
            slo_ttft_ms=plan.slo_ttft_ms,
            slo_tpot_ms=plan.slo_tpot_ms,
            adapter=plan.model.adapter,
            claim=prompt.claim,
            kv_at=prompt.kv_at,
            num_history=prompt.num_history,
            agent=agent,
            expiry_s=plan.kv_expiry_s,
            trace=self._spans[index].trace,
        )

    async def _end(self, index: int, piece: Piece) -> None:
        self._num_running -= 1
        choice, times, app = self.choices[index], self._times[index], self._app
        plan, reply = self.plan, None
        if index == 0 and plan.owner.session_id is not None:
            reply = Reply(*choice.kept(), choice.num_generated)
        if piece.cancel:
            num_kept = 0 if reply is None else num_computed(plan.prompts[0], reply)
            app.hub.cancel(self._turn_ids[index], num_kept)
        assert piece.finish is not None
        telemetry.FINISHED[piece.finish].inc()
        telemetry.PROMPT_LENGTH.observe(len(self.prompt_of(index).tokens))
        telemetry.REPLY_LENGTH.observe(choice.num_completion_tokens)
        telemetry.E2E.observe((times.last_at_ns - self._started_at_ns) / 1e9, self._exemplar)
        if times.first_at_ns is not None:
            telemetry.DECODE.observe((times.last_at_ns - times.first_at_ns) / 1e9)
        if reply is not None:
            await remember(app, plan.model, plan.owner, plan.prompts[0], reply)
        self._end_span(index)

    @property
    def _exemplar(self) -> dict[str, str] | None:
        """What leads from a metric to the trace."""
        trace_id = self.plan.span.trace_id
        return {"trace_id": trace_id} if trace_id else None

    def _end_span(self, index: int) -> None:
        """Tell the trace what became of a choice."""
        span = self._spans[index]
        if not span.trace:
            return
        choice, times = self.choices[index], self._times[index]
        told: dict[str, Value] = {
            "symphony.turn_id": self._turn_ids[index],
            "gen_ai.response.finish_reasons": [choice.finish or "abort"],
            "gen_ai.usage.input_tokens": len(self.prompt_of(index).tokens),
            "gen_ai.usage.output_tokens": choice.num_completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": choice.cached_tokens,
        }
        told |= {f"symphony.cached_in.{place}": num for place, num in choice.cached_in.items()}
        if times.first_at_ns is not None:
            told["gen_ai.server.time_to_first_token"] = (
                times.first_at_ns - self._started_at_ns
            ) / 1e9
        span.note(told)
        span.end(self._app.clock.now_ns())

    def _tell_agent_left(self) -> None:
        """What follows an agent's turn may come from now on."""
        plan = self.plan
        if plan.agent is not None and plan.owner.session_id is not None and self._turn_ids:
            left = AgentTurnLeft(
                agent=plan.agent,
                session_id=plan.owner.session_id,
                tenant=plan.owner.tenant,
                tools=self.tools,
                model_id=plan.model.card.model_id,
                adapter=plan.model.adapter,
                keys=pack_keys(plan.prompts[0].keys[:PREFIX_BLOCKS_MAX]),
            )
            self._app.hub.tell(left)

    def _carry_out(self, wishes: Sequence[Wish]) -> None:
        """See to what `kv_hints` ask for, beside the request."""
        if not wishes:
            return
        plan = self.plan
        work = carry_out(
            self._app,
            wishes,
            tenant=plan.owner.tenant,
            place=plan.place,
            model_id=plan.asked_model,
            request_id=plan.request_id,
            trace=plan.span.trace,
        )
        if not self._app.hints.spawn(work):
            telemetry.KV_HINTS.labels("dropped").inc(len(wishes))

    def _note(self) -> None:
        """Tell the access log."""
        usage = self.usage()
        firsts = [times.first_at_ns for times in self._times if times.first_at_ns is not None]
        if firsts:
            note(first_token_ms=round((min(firsts) - self._started_at_ns) / 1e6, 1))
        note(
            model=self.plan.model.card.model_id,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=self._num_cached(),
            completion_tokens=usage["completion_tokens"],
        )
        if self.plan.model.adapter is not None:
            note(adapter=self.plan.model.adapter.name)
        if self.plan.owner.session_id is not None:
            note(session_id=self.plan.owner.session_id)

    def _measure(self, index: int, event: Deliver) -> None:
        now_ns, times = self._app.clock.now_ns(), self._times[index]
        if times.first_at_ns is None:
            times.first_at_ns = now_ns
            self._admission.on_token(index)
            telemetry.TTFT.observe((now_ns - self._started_at_ns) / 1e9, self._exemplar)
        else:
            telemetry.INTER_TOKEN.observe((now_ns - times.last_at_ns) / 1e9)
        times.last_at_ns = now_ns
        telemetry.GENERATION_TOKENS.inc(len(event.tokens))
        if event.queue_ns is not None:
            telemetry.QUEUE.observe(event.queue_ns / 1e9)
        if event.prefill_ns is not None:
            telemetry.PREFILL.observe(event.prefill_ns / 1e9)
