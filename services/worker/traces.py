"""Traces of attempts: a span each, with what it waited for and what was computed as its parts; and
of what was prefetched for announced turns.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from services.worker.core.effects import Ended, Prefetched, TurnTimes
from shared.ids import TurnId, WorkerId
from shared.runtime.clock import Clock
from shared.tracing import NO_SPAN, Span, Tracer, Value
from shared.wire.messages import TurnEnd, TurnStart

OPEN_MAX = 4096  # attempts that began and of which no end is known


@dataclass(slots=True)
class _Open:
    span: Span
    began_ns: int


class TurnTraces:
    """The spans of attempts that are here. An attempt that is not traced costs one comparison."""

    def __init__(self, tracer: Tracer, clock: Clock, worker_id: WorkerId) -> None:
        self._tracer = tracer
        self._clock = clock
        self._worker_id = worker_id
        self._open: OrderedDict[tuple[TurnId, int], _Open] = OrderedDict()

    def on_start(self, start: TurnStart) -> TurnStart:
        """An attempt has come, perhaps without its prompt. What follows from it follows from its
        span.
        """
        key = start.turn_id, start.attempt
        if not start.trace or key in self._open:
            return start
        now_ns = self._clock.now_ns()
        attributes: dict[str, Value] = {
            "symphony.worker_id": self._worker_id,
            "symphony.turn_id": start.turn_id,
            "symphony.attempt": start.attempt,
            "gen_ai.request.model": start.model_id,
        }
        span = self._tracer.begin("attempt", start.trace, now_ns, attributes)
        if not span.trace:
            return start
        self._open[key] = _Open(span, now_ns)
        if len(self._open) > OPEN_MAX:
            _, oldest = self._open.popitem(last=False)
            oldest.span.end(now_ns)
        return replace(start, trace=span.trace)

    def on_ended(self, ended: Ended) -> None:
        """An attempt is over."""
        opened = self._open.pop((ended.end.turn_id, ended.end.attempt), None)
        if opened is None:
            return
        now_ns = self._clock.now_ns()
        if ended.times is not None:
            _add_parts(opened.span, opened.began_ns, ended.times, now_ns)
        _add_end(opened.span, ended.end)
        if ended.account is not None:
            opened.span.note({"gen_ai.usage.output_tokens": ended.account.num_generated})
        opened.span.end(now_ns)

    def on_prefetched(self, prefetched: Prefetched) -> None:
        """Nothing more is prefetched for an announced turn."""
        attributes: dict[str, Value] = {
            "symphony.worker_id": self._worker_id,
            "symphony.of": "adapter" if prefetched.adapter_hash else "history",
            "symphony.blocks": prefetched.num_staged,
            "symphony.blocks_here": prefetched.num_here,
        }
        span = self._tracer.begin("prefetch", prefetched.trace, prefetched.asked_at_ns, attributes)
        span.end(self._clock.now_ns())


def _add_parts(span: Span, began_ns: int, times: TurnTimes, now_ns: int) -> None:
    """The parts of an attempt: up to its prompt, in the queue, and as far as it came behind it."""
    if times.arrived_at_ns > began_ns:
        span.add("prompt", began_ns, times.arrived_at_ns)
    first_step_ns = times.first_step_at_ns
    queue = span.add("queue", times.arrived_at_ns, first_step_ns or now_ns)
    if times.staged_at_ns is not None:
        staged = {"symphony.blocks": times.num_staged}
        queue.add("history", times.arrived_at_ns, times.staged_at_ns, staged)
    if first_step_ns is None:
        return
    first_token_ns = times.first_token_at_ns or now_ns
    cached = {f"symphony.cached_in.{place}": num for place, num in times.cached_in.items()}
    prefill = span.add("prefill", first_step_ns, first_token_ns, cached)
    decode = NO_SPAN
    if times.first_token_at_ns is not None:
        decode = span.add("decode", first_token_ns, now_ns)
    for wait in times.waits:
        part = prefill if wait.began_ns < first_token_ns else decode
        part.add("wait for layer", wait.began_ns, wait.ended_ns, {"symphony.layer": wait.layer})


def _add_end(span: Span, end: TurnEnd) -> None:
    span.note({"gen_ai.response.finish_reasons": [end.reason]})
    if end.reason == "error":
        span.fail("error")
