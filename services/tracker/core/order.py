"""Advisories of senders that announce their turns in order: an arriving turn proves that those
announced before it will not come (SYMPHONY, Figure 7).
"""

from collections import OrderedDict

from services.tracker.core.records import Record, SessionKey

Sender = tuple[str, str, str]


class AdvisoryOrder:
    """Live advisories of each such sender, in the order in which they were sent.

    A sender is a place of a tenant's (an address, or NATS), in one workflow if it names one.
    """

    def __init__(self) -> None:
        self._sent: dict[Sender, OrderedDict[SessionKey, tuple[int, Record]]] = {}
        self._num_sent = 0
        self._came: dict[Sender, int] = {}  # advisories before this number are overtaken

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, record: Record, place: str, workflow_id: str) -> None:
        """Append the record to its sender's order."""
        self.remove(record)
        record.origin.sender = (record.key[0], place, workflow_id)
        self._num_sent += 1
        sent = self._sent.setdefault(record.origin.sender, OrderedDict())
        sent[record.key] = (self._num_sent, record)

    def remove(self, record: Record) -> None:
        """Remove a record that ended, or was announced again without an order."""
        if record.origin.sender is None:
            return
        sent = self._sent[record.origin.sender]
        del sent[record.key]
        if not sent:
            del self._sent[record.origin.sender]
            self._came.pop(record.origin.sender, None)
        record.origin.sender = None

    def came(self, record: Record) -> None:
        """Its turn arrived: earlier advisories of its sender are `overtaken`."""
        if record.origin.sender is not None:
            number, _ = self._sent[record.origin.sender][record.key]
            self._came[record.origin.sender] = max(number, self._came.get(record.origin.sender, 0))

    def overtaken(self) -> Record | None:
        """An overtaken record, or None; the same one until it is removed."""
        while self._came:
            sender, came = next(iter(self._came.items()))
            number, record = next(iter(self._sent[sender].values()))
            if number < came:
                return record
            del self._came[sender]
        return None
