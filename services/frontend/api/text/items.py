"""Answers that are items which follow each other: what is thought and said, and calls of tools."""

from abc import abstractmethod
from typing import Any

import orjson

from services.frontend.api.text.generation import Generation
from services.frontend.api.text.replies import Call, ReplyOfChoice, report
from services.frontend.api.text.writing import Writer
from services.frontend.core.replies.choice import Piece
from services.frontend.core.replies.thoughts import Thought
from services.frontend.core.tools import Argued, Said
from services.frontend.http.answers import NAME_FIELD
from services.frontend.prepare.reading import Reading

TextKind = type[Thought] | type[Said]


class ItemsWriter(Writer):
    """One choice as items. Each begins, is added to and ends before the next one begins; what
    events that makes is an endpoint's own, as are the items that it keeps for the whole.

    Args:
        reading: how the reply is read.
    """

    def __init__(self, generation: Generation, reading: Reading, *, is_streamed: bool) -> None:
        super().__init__(generation, is_streamed=is_streamed)
        self._reply = ReplyOfChoice(reading)
        self.calls = self._reply.calls
        self.items: list[dict[str, Any]] = []
        self._call: Call | None = None  # that the last item is of, if it has not ended
        self._kind: TextKind | None = None  # of the last item, if it is a text and has not ended
        self._texts: list[str] = []  # of that
        self._has_begun = False

    @abstractmethod
    def begin(self) -> list[bytes]:
        """Events before all items."""

    @abstractmethod
    def begin_text(self, kind: TextKind) -> list[bytes]:
        """Add an item for what is thought or said."""

    @abstractmethod
    def begin_call(self, call: Call) -> list[bytes]:
        """Add an item for a call."""

    @abstractmethod
    def add_text(self, kind: TextKind, text: str) -> bytes:
        """The event of more that is thought or said."""

    @abstractmethod
    def add_arguments(self, text: str) -> list[bytes]:
        """Events of more arguments of the call."""

    @abstractmethod
    def end_text(self, kind: TextKind, text: str, *, is_cut: bool) -> list[bytes]:
        """Nothing more is in the last item, which is all of this.

        Args:
            is_cut: the reply was too long and ends here.
        """

    @abstractmethod
    def end_call(self, arguments: str, *, is_cut: bool) -> list[bytes]:
        """The same of a call's arguments."""

    def num_entries(self, piece: Piece | None) -> int:
        return 0

    def add(self, piece: Piece) -> None:
        self.chunks(piece)

    def chunks(self, piece: Piece) -> list[bytes]:
        events = self.opening()
        for part in self._reply.take(piece):
            match part:
                case Thought(text) | Said(text):
                    events += self._add(type(part), text)
                case Call():
                    events += self._end()
                    self._call = part
                    events += self.begin_call(part)
                case Argued(more):
                    events += self.add_arguments(more)
        report(self.generation, [self._reply])
        if piece.finish is not None:
            events += self._end(is_cut=piece.finish == "length")
        return events

    def opening(self) -> list[bytes]:
        """Events before all items, once."""
        has_begun, self._has_begun = self._has_begun, True
        return [] if has_begun else self.begin()

    def _add(self, kind: TextKind, text: str) -> list[bytes]:
        events = []
        if self._kind is not kind:
            events += self._end()
            self._kind, self._texts = kind, []
            events += self.begin_text(kind)
        self._texts.append(text)
        return [*events, self.add_text(kind, text)]

    def _end(self, *, is_cut: bool = False) -> list[bytes]:
        """The last item takes no more; the reply may be cut off in it."""
        call, kind = self._call, self._kind
        self._call = self._kind = None
        if call is not None:
            return self.end_call(call.written(), is_cut=is_cut)
        return [] if kind is None else self.end_text(kind, "".join(self._texts), is_cut=is_cut)


def named_event(kind: str, **fields: Any) -> bytes:
    """An event with its name, which is in its data, too. The name's line comes first, as OpenAI and
    Anthropic send it: some parsers take an event to be of the name that they read last.

    >>> named_event("ping", at=1)
    b'event: ping\\ndata: {"type":"ping","at":1}'
    """
    data = orjson.dumps({"type": kind, **fields})
    return b"%b%b\ndata: %b" % (NAME_FIELD, kind.encode(), data)
