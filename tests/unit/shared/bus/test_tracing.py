"""Traces: their contexts, their spans, and a collector that does not want them."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared.runtime.clock import ManualClock
from shared.tracing import NO_SPAN, NO_TRACER, TraceContext, parse_trace
from shared.tracing.otlp import SPANS, OtlpTracer
from tests.counters import value_of

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


EPOCH = 1_700_000_000_000_000_000


class Since1970(ManualClock):
    """Its wall clock is as far from the other one as a machine's is."""

    def wall_ns(self) -> int:
        return EPOCH + self.now_ns()


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_context_survives_its_way(trace_id: int, span_id: int, is_sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, is_sampled)
    assert parse_trace(str(context)) == context


@given(st.text(max_size=80))
def test_whatever_else_comes_is_no_context(text: str) -> None:
    context = parse_trace(text)
    assert context is None or str(context)[3:52] == text[3:52]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (SENDER, True),
        (SENDER.replace("00-", "cc-", 1) + "-what-comes-later", True),
        (SENDER + "-more", False),  # of version 00, which has no more
        (SENDER.replace("00-", "ff-", 1), False),
        (SENDER.upper(), False),
        (SENDER.replace("b7ad6b7169203331", "0" * 16), False),
        (SENDER + "\n", False),
        ("", False),
    ],
)
def test_what_a_context_is(text: str, is_one: bool) -> None:
    assert (parse_trace(text) is not None) is is_one


def test_spans_are_told_with_their_parents_and_their_times() -> None:
    async def scenario() -> None:
        exporter, clock = InMemorySpanExporter(), Since1970(5_000)
        tracer = OtlpTracer("http://nobody:1", "worker", "3", clock, exporter)
        request = tracer.begin_request("POST /x", SENDER, 1_000)
        assert request.trace_id == SENDER[3:35] and request.began_ns == 1_000
        work = tracer.begin("work", request.trace, 2_000, {"symphony.attempt": 2})
        part = work.add("part", 2_100, 2_500)
        part.add("of it", 2_200, 2_300, {"symphony.layer": 7})
        work.fail("worker_error")
        work.end(3_000)
        request.note({"url.path": "/x" * 1_000})
        clock.advance(1_000)
        request.end(4_000)
        await tracer.close()
        told = {span.name: span for span in exporter.get_finished_spans()}
        parents = {name: span.parent.span_id for name, span in told.items() if span.parent}
        contexts = {name: span.get_span_context() for name, span in told.items()}
        ids = {name: context.span_id for name, context in contexts.items() if context}
        assert parents == {
            "POST /x": int(SENDER[36:52], 16),
            "work": ids["POST /x"],
            "part": ids["work"],
            "of it": ids["part"],
        }
        times = {name: (span.start_time, span.end_time) for name, span in told.items()}
        assert times["work"] == (EPOCH + 2_000, EPOCH + 3_000)
        assert times["of it"] == (EPOCH + 2_200, EPOCH + 2_300)
        assert dict(told["work"].attributes or {}) == {
            "symphony.attempt": 2, "error.type": "worker_error",
        }  # fmt: skip
        assert not told["work"].status.is_ok and told["part"].status.is_unset
        assert len(str((told["POST /x"].attributes or {})["url.path"])) == 256
        assert told["work"].resource.attributes["service.name"] == "symphony-worker"

    asyncio.run(scenario())


@pytest.mark.parametrize("trace", ["", "nonsense", SENDER[:-2] + "00"])
def test_what_is_not_traced_is_no_span(trace: str) -> None:
    async def scenario() -> None:
        exporter = InMemorySpanExporter()
        tracer = OtlpTracer("http://nobody:1", "worker", "0", ManualClock(), exporter)
        span = tracer.begin("work", trace, 0)
        assert span is NO_SPAN and span.trace_id == ""
        assert span.begin("part", 0) is span.add("part", 0, 1) is NO_SPAN
        await tracer.close()
        assert not exporter.get_finished_spans()

    asyncio.run(scenario())
    assert NO_TRACER.begin_request("POST /x", SENDER, 0) is NO_SPAN


class Refusing(SpanExporter):
    """A collector that wants nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass


def test_a_collector_that_takes_nothing_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tracer = OtlpTracer("http://nobody:1", "worker", "0", ManualClock(), Refusing())
        for _ in range(2_000):
            tracer.begin_request("POST /x", "", 0).end(1)
        await tracer.close()

    before = value_of(SPANS.labels("lost"))
    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert value_of(SPANS.labels("lost")) - before == 2_000
    (line,) = caplog.records
    assert line.getMessage() == "traces not sent" and line.url == "http://nobody:1"  # type: ignore[attr-defined]
