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
        self._sent: dict[Sender, OrderedDict[SessionKey, Record]] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, record: Record, place: str, workflow_id: str) -> None:
        """The record's last advisory stands in its sender's order, after all earlier ones."""
        self.remove(record)
        record.sender = (record.key[0], place, workflow_id)
        self._sent.setdefault(record.sender, OrderedDict())[record.key] = record

    def remove(self, record: Record) -> None:
        """The record is over, or somebody announced it who knows no order."""
        if record.sender is None:
            return
        sent = self._sent[record.sender]
        del sent[record.key]
        if not sent:
            del self._sent[record.sender]
        record.sender = None

    def before(self, record: Record) -> list[Record]:
        """Those of the same sender that were to come before this one."""
        if record.sender is None:
            return []
        found: list[Record] = []
        for each in self._sent[record.sender].values():
            if each is record:
                break
            found.append(each)
        return found
