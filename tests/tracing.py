"""A tracer that keeps what it is told, for tests."""

from collections.abc import Mapping

from shared.tracing import Span, TraceContext, Tracer, Value, parse_trace


class TapedSpan(Span):
    """A span that is looked at later.

    Attributes:
        parent: as its message brought it.
        ended_ns: None: it has not ended.
    """

    __slots__ = ("_tape", "began_ns", "ended_ns", "name", "notes", "parent", "trace", "why")

    def __init__(self, tape: "Tape", name: str, parent: str, began_ns: int) -> None:
        context = parse_trace(parent)
        trace_id = context.trace_id if context is not None else 1
        self.trace = str(TraceContext(trace_id, 1000 + len(tape.spans)))
        self.name, self.parent, self.began_ns = name, parent, began_ns
        self.ended_ns: int | None = None
        self.notes: dict[str, Value] = {}
        self.why = ""
        self._tape = tape
        tape.spans.append(self)

    def begin(self, name: str, began_ns: int) -> Span:
        return TapedSpan(self._tape, name, self.trace, began_ns)

    def add(
        self, name: str, began_ns: int, ended_ns: int, attributes: Mapping[str, Value] = {}
    ) -> Span:
        part = TapedSpan(self._tape, name, self.trace, began_ns)
        part.note(attributes)
        part.end(ended_ns)
        return part

    def note(self, attributes: Mapping[str, Value]) -> None:
        self.notes |= attributes

    def fail(self, why: str) -> None:
        self.why = why

    def end(self, ended_ns: int) -> None:
        assert self.ended_ns is None, "it had ended"
        assert ended_ns >= self.began_ns, "it ended before it began"
        self.ended_ns = ended_ns


class Tape(Tracer):
    """Every span, in the order in which they began to be told."""

    def __init__(self) -> None:
        self.spans: list[TapedSpan] = []

    def begin(
        self, name: str, trace: str, began_ns: int, attributes: Mapping[str, Value] = {}
    ) -> Span:
        span = TapedSpan(self, name, trace, began_ns)
        span.note(attributes)
        return span

    def begin_request(self, name: str, trace: str, began_ns: int) -> Span:
        return TapedSpan(self, name, trace, began_ns)
