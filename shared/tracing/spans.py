"""Spans and tracers: their interface, implementations that record nothing, and the trace context
that goes over the wire.

Instants are monotonic, ns, as everywhere in a service.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | bool | Sequence[str]
NOTHING: Mapping[str, Value] = {}


class Span:
    """One piece of work; this class records nothing.

    Attributes:
        trace: context for messages that the work leads to; empty: not traced.
        began_ns: when it began.
    """

    __slots__ = ()
    trace: str = ""
    began_ns: int = 0

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; empty if not recorded."""
        return self.trace[3:35]

    def begin(self, name: str, began_ns: int) -> "Span":
        """Begin a child span."""
        return self

    def add(
        self, name: str, began_ns: int, ended_ns: int, attributes: Mapping[str, Value] = NOTHING
    ) -> "Span":
        """Add a child span that has ended."""
        return self

    def note(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""

    def fail(self, why: str) -> None:
        """Mark it as failed."""

    def end(self, ended_ns: int) -> None:
        """End it. Later attributes are ignored."""


class Tracer:
    """Begins spans; this class records none."""

    def begin(
        self, name: str, trace: str, began_ns: int, attributes: Mapping[str, Value] = NOTHING
    ) -> Span:
        """Begin a span under the context `trace` of a message."""
        return NO_SPAN

    def begin_request(self, name: str, trace: str, began_ns: int) -> Span:
        """Begin a request's span: a new trace, or a part of the client's, if `trace` names one."""
        return NO_SPAN

    async def close(self) -> None:
        """Send what was recorded, with a short timeout."""


NO_SPAN = Span()
NO_TRACER = Tracer()


TRACE_HEADER = "traceparent"
SAMPLED = 0x01
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span's identity, by which its children refer to it.

    Attributes:
        is_sampled: the service that began the trace records it.
    """

    trace_id: int
    span_id: int
    is_sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse_trace(text: str) -> TraceContext | None:
    """The context in a ``traceparent``; None if it is invalid: then a new trace begins.

    >>> str(parse_trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    >>> parse_trace("00-00000000000000000000000000000000-b7ad6b7169203331-01")
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    found = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & SAMPLED))
    return found if found.trace_id and found.span_id else None
