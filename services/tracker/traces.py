"""Traces of advisories: one span each, from its arrival to its outcome."""

from collections import OrderedDict
from dataclasses import replace

from services.tracker.core.effects import Outcome
from shared.ids import WorkerId
from shared.runtime.clock import Clock
from shared.tracing import Span, Tracer, Value
from shared.wire.messages import Advisory

OPEN_MAX = 4096  # that live


class AdvisoryTraces:
    """The spans of live advisories. An untraced one costs one comparison."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._open: OrderedDict[str, Span] = OrderedDict()

    def on_submit(self, advisory: Advisory) -> Advisory:
        """Begin the span of a traced advisory; returns the advisory under that span."""
        if not advisory.trace:
            return advisory
        now_ns = self._clock.now_ns()
        attributes: dict[str, Value] = {"gen_ai.conversation.id": advisory.session_id}
        if advisory.expected_arrival is not None:
            attributes["symphony.expected_arrival_s"] = advisory.expected_arrival
        if advisory.agent:
            attributes["gen_ai.agent.name"] = advisory.agent
        span = self._tracer.begin("advisory", advisory.trace, now_ns, attributes)
        if span.trace:
            self._open[span.trace] = span
            if len(self._open) > OPEN_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.end(now_ns)
        return replace(advisory, trace=span.trace)

    def on_refused(self, trace: str, code: str) -> None:
        """End the span of a refused advisory."""
        if (span := self._open.pop(trace, None)) is not None:
            span.fail(code)
            span.end(self._clock.now_ns())

    def on_end(self, trace: str, outcome: Outcome, worker_id: WorkerId | None) -> None:
        """End the span of an advisory that ended."""
        if (span := self._open.pop(trace, None)) is not None:
            span.note({"symphony.outcome": outcome})
            if worker_id is not None:
                span.note({"symphony.worker_id": worker_id})
            span.end(self._clock.now_ns())
