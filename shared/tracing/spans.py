"""The interface of spans and tracers, and implementations that record nothing.

Instants are monotonic, ns, as everywhere in a service.
"""

from collections.abc import Mapping, Sequence

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
