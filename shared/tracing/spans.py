"""What services say of their work, whether it is recorded or not.

Instants are monotonic, ns, as everywhere in a service.
"""

from collections.abc import Mapping, Sequence

Value = str | int | float | bool | Sequence[str]
NOTHING: Mapping[str, Value] = {}


class Span:
    """One piece of work; this one is not recorded.

    Attributes:
        trace: what goes along with messages that the work leads to; empty: they are not traced.
        began_ns: when it began.
    """

    __slots__ = ()
    trace: str = ""
    began_ns: int = 0

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; empty if it is not recorded."""
        return self.trace[3:35]

    def begin(self, name: str, began_ns: int) -> "Span":
        """A part of it, that has begun."""
        return self

    def add(
        self, name: str, began_ns: int, ended_ns: int, attributes: Mapping[str, Value] = NOTHING
    ) -> "Span":
        """A part of it, that is over."""
        return self

    def note(self, attributes: Mapping[str, Value]) -> None:
        """Say more of it."""

    def fail(self, why: str) -> None:
        """It came to nothing."""

    def end(self, ended_ns: int) -> None:
        """It is over. What is said afterwards is not recorded."""


class Tracer:
    """Where spans begin; this one records none."""

    def begin(
        self,
        name: str,
        trace: str,
        began_ns: int,
        attributes: Mapping[str, Value] = NOTHING,
    ) -> Span:
        """Work that a message led to, which brought `trace`."""
        return NO_SPAN

    def begin_request(self, name: str, trace: str, began_ns: int) -> Span:
        """What begins here: a trace of its own, or a part of that of its sender, who is `trace`."""
        return NO_SPAN

    async def close(self) -> None:
        """Send what was recorded, for a moment at most."""


NO_SPAN = Span()
NO_TRACER = Tracer()
