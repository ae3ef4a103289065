"""Recorded spans, which a background thread sends to a collector by OTLP over HTTP.

Names of attributes are those of OpenTelemetry's semantic conventions where these have one, else
``symphony.…``. The exporter reads OpenTelemetry's own variables for the rest, such as
``OTEL_EXPORTER_OTLP_HEADERS``.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace import Tracer as OtelTracer
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from shared.runtime.clock import Clock
from shared.runtime.metrics import counter
from shared.runtime.sparsely import Sparsely
from shared.runtime.tasks import wait_set
from shared.tracing.spans import NO_SPAN, NOTHING, Span, TraceContext, Tracer, Value, parse_trace

log = logging.getLogger(__name__)

QUEUE_MAX = 4096  # spans that wait to be sent; further ones are lost
SEND_EVERY_MS = 1000
SEND_TIMEOUT_S = 5.0
CLOSE_S = 2.0
TEXT_CHARS_MAX = 256

SPANS = counter("spans_total", "Spans by whether the collector accepted them", ["outcome"])


class RecordedSpan(Span):
    """A span of the OpenTelemetry library.

    Args:
        wall_ns: offset from the monotonic to the wall clock. Child spans use the same, so that they
            stay within this one even if the wall clock is adjusted.
    """

    __slots__ = ("_span", "_tracer", "_wall_ns", "began_ns", "trace")

    def __init__(self, tracer: OtelTracer, span: otel.Span, began_ns: int, wall_ns: int) -> None:
        self.began_ns = began_ns
        self._tracer = tracer
        self._span = span
        self._wall_ns = wall_ns
        context = span.get_span_context()
        self.trace = str(TraceContext(context.trace_id, context.span_id))

    def begin(self, name: str, began_ns: int) -> Span:
        return self._start(name, began_ns, NOTHING)

    def add(
        self, name: str, began_ns: int, ended_ns: int, attributes: Mapping[str, Value] = NOTHING
    ) -> Span:
        part = self._start(name, began_ns, attributes)
        part.end(ended_ns)
        return part

    def note(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def fail(self, why: str) -> None:
        self._span.set_status(otel.StatusCode.ERROR, why[:TEXT_CHARS_MAX])
        self._span.set_attribute("error.type", why)

    def end(self, ended_ns: int) -> None:
        self._span.end(ended_ns + self._wall_ns)

    def _start(self, name: str, began_ns: int, attributes: Mapping[str, Value]) -> "RecordedSpan":
        span = self._tracer.start_span(
            name,
            otel.set_span_in_context(self._span),
            attributes=attributes,
            start_time=began_ns + self._wall_ns,
        )
        return RecordedSpan(self._tracer, span, began_ns, self._wall_ns)


class OtlpTracer(Tracer):
    """Records all spans.

    Args:
        endpoint: address of the collector, without the path.
        service, instance: the origin of the spans.
        exporter: where spans go; None: the collector at `endpoint`.
    """

    def __init__(
        self,
        endpoint: str,
        service: str,
        instance: str,
        clock: Clock,
        exporter: SpanExporter | None = None,
    ) -> None:
        logging.getLogger("opentelemetry").setLevel(
            logging.CRITICAL
        )  # `_CountingExporter` logs less often
        self._clock = clock
        if exporter is None:
            address = f"{endpoint.rstrip('/')}/v1/traces"
            exporter = OTLPSpanExporter(endpoint=address, timeout=SEND_TIMEOUT_S)
        resource = Resource.create(
            {"service.name": f"symphony-{service}", "service.instance.id": instance}
        )
        self._provider = TracerProvider(
            ALWAYS_ON,
            resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=TEXT_CHARS_MAX),
        )
        counting = _CountingExporter(exporter, endpoint)
        self._provider.add_span_processor(
            BatchSpanProcessor(counting, QUEUE_MAX, schedule_delay_millis=SEND_EVERY_MS)
        )
        tracer = self._provider.get_tracer("symphony")
        assert isinstance(tracer, OtelTracer)
        self._tracer = tracer

    def begin(
        self, name: str, trace: str, began_ns: int, attributes: Mapping[str, Value] = NOTHING
    ) -> Span:
        context = parse_trace(trace) if trace else None
        if context is None or not context.is_sampled:
            return NO_SPAN
        return self._start(name, context, began_ns, otel.SpanKind.INTERNAL, attributes)

    def begin_request(self, name: str, trace: str, began_ns: int) -> Span:
        context = parse_trace(trace)
        return self._start(name, context, began_ns, otel.SpanKind.SERVER, NOTHING)

    async def close(self) -> None:
        loop, is_closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(is_closed.set)

        # A collector that does not answer blocks a daemon thread, not this process.
        threading.Thread(target=close, name="traces", daemon=True).start()
        await wait_set(is_closed, CLOSE_S)

    def _start(
        self,
        name: str,
        parent: TraceContext | None,
        began_ns: int,
        kind: otel.SpanKind,
        attributes: Mapping[str, Value],
    ) -> RecordedSpan:
        context = None
        if parent is not None:
            flags = otel.TraceFlags(otel.TraceFlags.SAMPLED)
            named = otel.SpanContext(parent.trace_id, parent.span_id, True, flags)
            context = otel.set_span_in_context(otel.NonRecordingSpan(named))
        wall_ns = self._clock.wall_ns() - self._clock.now_ns()
        span = self._tracer.start_span(
            name, context, kind, attributes, start_time=began_ns + wall_ns
        )
        return RecordedSpan(self._tracer, span, began_ns, wall_ns)


class _CountingExporter(SpanExporter):
    """Counts accepted spans, and logs failures at a limited rate."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._troubles = Sparsely()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            SPANS.labels("sent").inc(len(spans))
            self._troubles.clear()
            return result
        SPANS.labels("lost").inc(len(spans))
        if num := self._troubles.hear("export", time.monotonic_ns()):
            log.warning("traces not sent", extra={"url": self._endpoint, "num_errors": num})
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
