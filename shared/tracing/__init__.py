"""Traces: where a request spent its time in the deployment.

A service begins a span under the context of a message (`trace`, a W3C ``traceparent``) and passes
its own context on. An untraced message has none, and costs a comparison with an empty text.
"""

from shared.tracing.spans import (
    NO_SPAN,
    NO_TRACER,
    TRACE_HEADER,
    Span,
    TraceContext,
    Tracer,
    Value,
    parse_trace,
)

__all__ = [
    "NO_SPAN",
    "NO_TRACER",
    "TRACE_HEADER",
    "Span",
    "TraceContext",
    "Tracer",
    "Value",
    "parse_trace",
]
