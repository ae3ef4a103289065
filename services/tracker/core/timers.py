"""When which advisory's record is next looked at."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from services.tracker.core.records import Record, SessionKey

STALE_TIMERS_MIN = 1024


class RecordTimers:
    """A heap of records by `due_at_ns`; entries of another instant are outdated."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Record]] = []
        self._num_set = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at_ns(self) -> int | None:
        """The instant of the first entry, outdated or not; None without entries."""
        return self._heap[0][0] if self._heap else None

    def set(self, record: Record, at_ns: int) -> None:
        """Look at the record at this instant."""
        self._num_set += 1
        record.due_at_ns = at_ns
        heappush(self._heap, (at_ns, self._num_set, record))

    def pop_due(self) -> Record | None:
        """The next due record; None if its entry is outdated. Call it while `next_at_ns` is due."""
        at_ns, _, record = heappop(self._heap)
        if record.due_at_ns != at_ns:
            return None
        record.due_at_ns = None
        return record

    def forget_stale(self, *tables: Mapping[SessionKey, Record]) -> None:
        """Remove outdated entries once they are more than about half: a session whose turn is
        announced and withdrawn repeatedly leaves one each time.

        Args:
            tables: the records that are still known.
        """
        num_known = sum(len(table) for table in tables)
        if len(self._heap) <= 2 * num_known + STALE_TIMERS_MIN:
            return
        known = {id(record) for table in tables for record in table.values()}
        self._heap = [
            entry
            for entry in self._heap
            if id(entry[2]) in known and entry[2].due_at_ns == entry[0]
        ]
        heapify(self._heap)
