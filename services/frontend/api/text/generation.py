"""One request for text, from tokenized prompts to pieces of its choices.

Chat, completions and the NATS endpoint differ in what they read and how they write; all that lies
between is here.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from services.frontend.api.sessions.advising import carry_out
from services.frontend.app import App
from services.frontend.core.limits.capacity import HeldCapacity, TooManyRequests
from services.frontend.core.limits.quotas import Admission
from services.frontend.core.replies.choice import Choice, Piece
from services.frontend.core.turns.turns import Deliver, Fail
from services.frontend.observability import telemetry
from services.frontend.observability.access_log import note
from services.frontend.prepare.plan import Plan
from services.frontend.prepare.remember import Reply, num_computed, remember
from services.frontend.prepare.requests import Wish
from services.frontend.turns.hub import Mailbox, TurnError
from shared.blocks import PREFIX_BLOCKS_MAX, pack_keys
from shared.errors import InvalidRequest
from shared.ids import TurnId
from shared.tracing import Span, Value
from shared.wire.messages import AgentTurnLeft, KvPlace


@dataclass(slots=True)
class _Times:
    """Instants of one choice, ns; None until they come."""

    first_at_ns: int | None = None
    last_at_ns: int = 0


class Generation:
    """The turns of one request. A context: leaving it cancels whatever still runs.

    Attributes:
        created_s: wall-clock seconds.
        mailbox: its `abandon` is called when the client hangs up.
        tools: names of those that the reply calls, set by what reads calls in it.
        num_thought_tokens: of thoughts, set by what reads them; None: they are not read.
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
            Choice(index, decode, plan.prompt_of(index).tokens, plan.request.rules)
            for index in range(plan.num_choices)
        ]
        self._times = [_Times() for _ in self.choices]
        self._turn_ids: list[TurnId] = []
        self._spans: list[Span] = []
        self._num_running = len(self.choices)
        self._started_at_ns = app.clock.now_ns()
        self.created_s = app.clock.wall_ns() // 1_000_000_000
        prompts = [len(plan.prompt_of(index).tokens) for index in range(plan.num_choices)]
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
            self._app.hints.on_turn(owner.tenant, owner.session_id)
        telemetry.RUNNING.inc()
        telemetry.PROMPT_TOKENS.inc(sum(len(prompt.tokens) for prompt in self.plan.prompts))
        span, now_ns = self.plan.request.origin.span, self._app.clock.now_ns()
        span.add("prepare", span.began_ns, now_ns)
        for index in range(len(self.choices)):
            self._spans.append(span.begin("turn", now_ns))
            new = self.plan.new_turn(index, self._spans[index].trace)
            self._turn_ids.append(new.turn_id)
            self._app.hub.open(new, self.mailbox, index)
        self._carry_out([wish for wish in self.plan.request.turn.wishes if not wish.is_own])
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
        self._report_agent_left()
        self._carry_out([wish for wish in self.plan.request.turn.wishes if wish.is_own])

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
        num_prompt = sum(
            len(prompt.tokens) if choice.prompt_tokens is None else choice.prompt_tokens
            for prompt, choice in zip(
                self.plan.prompts, self.choices[:: self.plan.request.n], strict=True
            )
        )
        if num_completion is None:
            num_completion = sum(choice.num_completion_tokens for choice in self.choices)
        details: dict[str, object] = {
            "cached_tokens": self._num_cached(),
            "cache_write_tokens": 0,  # what it costs to write to a cache: nothing
        }
        usage: dict[str, object] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": details,
        }
        if self.plan.request.shows_tiers:
            details["cached_tokens_details"] = self._places()
        if self.num_thought_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.num_thought_tokens}
        return usage

    def _num_cached(self) -> int:
        """Prompt tokens that were not computed, of each prompt once."""
        return sum(choice.cached_tokens for choice in self.choices[:: self.plan.request.n])

    def _places(self) -> dict[KvPlace, int]:
        """Where those were when the turns came."""
        places: Counter[KvPlace] = Counter()
        for choice in self.choices[:: self.plan.request.n]:
            places.update(choice.cached_in)
        return dict(places)

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
        telemetry.PROMPT_LENGTH.observe(len(self.plan.prompt_of(index).tokens))
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
        trace_id = self.plan.request.origin.span.trace_id
        return {"trace_id": trace_id} if trace_id else None

    def _end_span(self, index: int) -> None:
        """Write into the trace what became of a choice."""
        span = self._spans[index]
        if not span.trace:
            return
        choice, times = self.choices[index], self._times[index]
        facts: dict[str, Value] = {
            "symphony.turn_id": self._turn_ids[index],
            "gen_ai.response.finish_reasons": [choice.finish or "abort"],
            "gen_ai.usage.input_tokens": len(self.plan.prompt_of(index).tokens),
            "gen_ai.usage.output_tokens": choice.num_completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": choice.cached_tokens,
        }
        facts |= {f"symphony.cached_in.{place}": num for place, num in choice.cached_in.items()}
        if times.first_at_ns is not None:
            facts["gen_ai.server.time_to_first_token"] = (
                times.first_at_ns - self._started_at_ns
            ) / 1e9
        span.note(facts)
        span.end(self._app.clock.now_ns())

    def _report_agent_left(self) -> None:
        """What follows an agent's turn may come from now on."""
        plan, agent = self.plan, self.plan.request.turn.agent
        if agent is not None and plan.owner.session_id is not None and self._turn_ids:
            left = AgentTurnLeft(
                agent=agent,
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
        plan, origin = self.plan, self.plan.request.origin
        work = carry_out(
            self._app,
            wishes,
            tenant=plan.owner.tenant,
            place=origin.place,
            model_id=plan.asked_model,
            request_id=origin.request_id,
            trace=origin.span.trace,
        )
        if not self._app.hints.spawn(work):
            telemetry.KV_HINTS.labels("dropped").inc(len(wishes))

    def _note(self) -> None:
        """Write into the access log."""
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
