"""A reply, read as it comes: text for the client, and calls of tools."""

from collections.abc import Collection

from services.frontend.core.detokenizer import num_held_back
from services.frontend.core.tools.arguments import SPACE
from services.frontend.core.tools.call_reader import ArgumentsReader, CallReader, Reader, joined
from services.frontend.core.tools.families import Called, Event, Family, Said

BETWEEN = SPACE + ",;[]"  # calls in a list, or one behind the other
BEHIND = BETWEEN + "}"  # a call: some models close once too often
HELD_CHARS_MAX = 512  # of what may be between calls: more is text


class ToolParser:
    """What may be the beginning of a call is kept back until it is sure what it is. All that is no
    call is text, to the letter; but what stands between calls, and space before them, is left out,
    and so is a call that the reply's end cuts off before it is known what it calls.

    Args:
        names: of the tools there are. What calls no such one is text.
        calls_max: calls that are reported; more are left out. None: all.
        is_forced: the reply is held to calls: what is none is the beginning of one.

    Attributes:
        has_broken: some call's arguments were no JSON (see `ArgumentsText`).
    """

    def __init__(
        self,
        family: Family,
        names: Collection[str],
        calls_max: int | None = None,
        *,
        is_forced: bool = False,
    ) -> None:
        self._family = family
        self._marks = [mark for mark in (family.end, family.marker) if mark]
        self._names = names
        self._calls_max = calls_max
        self._is_forced = is_forced
        self.has_broken = False
        self._num_calls = 0
        self._held = ""  # has come, and was not looked at for good
        self._before = ""  # was looked at: it is left out if a call follows, else it is text
        self._is_marked = False  # there is a marker in that
        self._is_behind = False  # that stands behind a call
        self._reader: Reader | None = None
        self._is_calling = family.is_bare  # what comes may be a call, without a marker

    @property
    def is_within(self) -> bool:
        """Whether what has come so far ends within a call."""
        return self._reader is not None and self._reader.is_call

    def feed(self, text: str) -> list[Event]:
        """The events in a piece of the reply, as far as they are sure."""
        self._held += text
        events: list[Event] = []
        while self._held and self._step(events):
            pass
        return self._within_limit(events)

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """The reply is over: what is left of it.

        Args:
            is_cut: not by the model.
        """
        events: list[Event] = []
        is_begun = self._is_marked
        if self._reader is not None:
            is_begun = self._reader.is_marked or self._num_calls > 0
            events += self._reader.finish()
        if self._is_forced or (is_cut and is_begun):
            self._held = self._before = ""
            return []
        if is_cut and (marker := self._family.marker):
            num = num_held_back(self._held, [marker], len(marker))
            if num > 1 or self._num_calls:  # a bracket alone is rather text
                self._held = self._held[: len(self._held) - num]
        self._before += self._held
        self._held = ""
        if not self._num_calls or self._before.strip(SPACE):
            self._flush(events)
        return self._within_limit(events)

    def _step(self, events: list[Event]) -> bool:
        """Take something of what is held; False: nothing can be taken before more comes."""
        if self._reader is not None:
            return self._read(self._reader, events)
        if self._is_calling:
            return self._look_for_call(events)
        return self._look_for_marker(events)

    def _read(self, reader: Reader, events: list[Event]) -> bool:
        num, events_read = reader.feed(self._held)
        self._held = self._held[num:]
        self._num_calls += sum(isinstance(event, Called) for event in events_read)
        events += events_read
        self.has_broken |= reader.is_broken
        if reader.is_over:
            self._reader, self._is_behind = None, reader.is_call
        return True

    def _look_for_call(self, events: list[Event]) -> bool:
        """Where a call may begin: at once, or behind others."""
        held, family = self._held, self._family
        for mark in self._marks:
            if held.startswith(mark):
                self._skip(len(mark))
                self._is_marked = mark == family.marker
                if not self._is_marked:
                    self._end_call(events)
                return True
        if any(mark.startswith(held) for mark in self._marks):
            return False
        if held[0] == "{":
            reader = CallReader(self._names, self._before, is_marked=self._is_marked)
            self._open(reader, held)
            return True
        if len(self._before) < HELD_CHARS_MAX:
            if held[0] in (BEHIND if self._is_behind else BETWEEN):
                self._skip(1)
                return True
            if self._is_marked and family.argument_marker:
                taken = self._take_name(held, events)
                if taken is not None:
                    return taken
        self._is_calling = False
        self._flush(events)
        return True

    def _take_name(self, text: str, events: list[Event]) -> bool | None:
        """A call whose name stands before its arguments; None: it is no such call."""
        family = self._family
        written = text.partition("[")[0].partition("{")[0]
        name, rest = written.rstrip(SPACE), text[len(written) :]
        if not rest:  # of the name there may be more
            return False if any(each.startswith(name) for each in self._names) else None
        if name not in self._names:
            return None
        if rest.startswith(family.id_marker):
            called, _, rest = rest.removeprefix(family.id_marker).partition("[")
            if not rest:
                return False if len(called) < HELD_CHARS_MAX else None
            rest = "[" + rest
        if any(mark.startswith(rest) for mark in (family.id_marker, family.argument_marker)):
            return False
        rest = rest.removeprefix(family.argument_marker).lstrip(SPACE)
        if not rest:
            return False if len(text) < HELD_CHARS_MAX else None
        if rest[0] != "{":
            return None
        events.append(Called(name))
        self._num_calls += 1
        self._open(ArgumentsReader(), rest)
        return True

    def _look_for_marker(self, events: list[Event]) -> bool:
        marker, held = self._family.marker, self._held
        before, found, _ = held.partition(marker) if marker else (held, "", "")
        if not found:
            before = held[: len(held) - num_held_back(held, [marker], len(marker))]
        said = before
        if marker and len(before) - len(before.rstrip(SPACE)) <= HELD_CHARS_MAX:
            said = before.rstrip(SPACE)  # space may be what stands before a call
        events.append(Said(said))
        self._held = held[len(said) :]
        if found:
            self._skip(len(before) - len(said))
            self._is_calling = True
        return bool(found)

    def _skip(self, num: int) -> None:
        self._before += self._held[:num]
        self._held = self._held[num:]

    def _open(self, reader: Reader, text: str) -> None:
        self._reader, self._held = reader, text
        self._before, self._is_marked, self._is_behind = "", False, False

    def _end_call(self, events: list[Event]) -> None:
        """An end that the model marks: what was before it was a call, or none was there."""
        self._is_calling = False
        self._flush(events)

    def _flush(self, events: list[Event]) -> None:
        """No call follows what was looked at: it is text, unless it stands behind one."""
        if not self._is_behind:
            events.append(Said(self._before))
        self._before, self._is_marked, self._is_behind = "", False, False

    def _within_limit(self, events: list[Event]) -> list[Event]:
        """These, without calls that are too many."""
        if self._calls_max is None or self._num_calls <= self._calls_max:
            return joined(events)
        num_before = self._num_calls - sum(isinstance(event, Called) for event in events)
        kept: list[Event] = []
        for event in events:
            num_before += isinstance(event, Called)
            if isinstance(event, Said) or num_before <= self._calls_max:
                kept.append(event)
        return joined(kept)
