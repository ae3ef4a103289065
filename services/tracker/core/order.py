"""Advisories of senders who announce their turns in order: a turn that comes proves that those
announced before it will not (SYMPHONY, Figure 7).
"""

from collections import OrderedDict

from services.tracker.core.records import Record, SessionKey

Sender = tuple[str, str, str]


class Order:
    """Live advisories of each such sender, in the order in which they were sent.

    A sender is a place of a tenant's (an address, or NATS), in one workflow if it names one.
    """

    def __init__(self) -> None:
        self._sent: dict[Sender, OrderedDict[SessionKey, tuple[int, Record]]] = {}
        self._num_sent = 0
        self._came: dict[Sender, int] = {}  # what was sent before this one is not coming

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, record: Record, place: str, workflow_id: str) -> None:
        """The record's last advisory stands in its sender's order, after all earlier ones."""
        self.remove(record)
        record.sender = (record.key[0], place, workflow_id)
        self._num_sent += 1
        sent = self._sent.setdefault(record.sender, OrderedDict())
        sent[record.key] = (self._num_sent, record)

    def remove(self, record: Record) -> None:
        """The record is over, or somebody announced it who knows no order."""
        if record.sender is None:
            return
        sent = self._sent[record.sender]
        del sent[record.key]
        if not sent:
            del self._sent[record.sender]
            self._came.pop(record.sender, None)
        record.sender = None

    def came(self, record: Record) -> None:
        """Its turn is here: those of its sender that were to come before it are `overtaken`."""
        if record.sender is not None:
            number, _ = self._sent[record.sender][record.key]
            self._came[record.sender] = max(number, self._came.get(record.sender, 0))

    def overtaken(self) -> Record | None:
        """One whose turn is not coming, as a later one came; until it is removed, the same one."""
        while self._came:
            sender, came = next(iter(self._came.items()))
            number, record = next(iter(self._sent[sender].values()))
            if number < came:
                return record
            del self._came[sender]
        return None
