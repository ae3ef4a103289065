"""Traces of requests: begun here, with the fields of the access log at their end."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from services.frontend.core.observability.trace_sampler import TraceSampler
from services.frontend.observability.access_log import Fields
from shared.runtime.clock import Clock
from shared.tracing import NO_SPAN, NO_TRACER, Span, Tracer, Value, parse_trace

ATTRIBUTES = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "request_id": "symphony.request_id",
    "tenant": "symphony.tenant",
    "model": "gen_ai.request.model",
    "adapter": "symphony.adapter",
    "session_id": "gen_ai.conversation.id",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "first_token_ms": "symphony.first_token_ms",
    "inputs": "symphony.inputs",
}
"""Fields of the access log, as OpenTelemetry calls them where it has a name."""


class RequestTracer:
    """Begins the spans of requests.

    Args:
        sampler: which of them.
        draw: a random number from 0 to below 1.
    """

    def __init__(
        self, tracer: Tracer, clock: Clock, sampler: TraceSampler, draw: Callable[[], float]
    ) -> None:
        self._tracer = tracer
        self._clock = clock
        self._sampler = sampler
        self._draw = draw

    @contextmanager
    def request(self, name: str, sender: str, line: Fields) -> Iterator[Span]:
        """The span of a request, which ends with this block.

        Args:
            sender: its ``traceparent``; empty: it has none.
            line: what is known of it at the end.
        """
        span = self._begin(name, sender)
        try:
            yield span
        finally:
            if span.trace:
                span.note(attributes_of(line))
                if (error := line.get("error")) is not None:
                    span.fail(str(error))
                span.end(self._clock.now_ns())

    def _begin(self, name: str, sender: str) -> Span:
        if self._tracer is NO_TRACER:
            return NO_SPAN
        context = parse_trace(sender)
        now_ns = self._clock.now_ns()
        if not self._sampler.takes(context, self._draw(), now_ns):
            return NO_SPAN
        return self._tracer.begin_request(name, "" if context is None else str(context), now_ns)


def attributes_of(line: Fields) -> Mapping[str, Value]:
    """What the access log says, under the names that collectors know.

    >>> attributes_of({"model": "demo", "duration_ms": 3})
    {'gen_ai.request.model': 'demo'}
    """
    return {ATTRIBUTES[name]: value for name, value in line.items() if name in ATTRIBUTES}
