"""A trace's context as it travels.

Source: W3C, "Trace Context", version 00, section 3.2.
"""

import re
from dataclasses import dataclass

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
