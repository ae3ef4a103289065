"""What this frontend knows of the names of adapters, and when it has to ask.

It hears of changes as they are made, and of what was there before by asking Redis, once. Of two
that say something else the higher revision counts, so it does not matter in which order they come.
A name that is known stays known until somebody says that it was removed: that Redis does not have
it may only mean that Redis was wiped.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shared.adapters.record import EVERYBODY
from shared.ids import TenantId
from shared.messages import AdapterChanged, AdapterRecord

Key = tuple[TenantId, str]
Ask = Literal["no", "behind", "first"]

KNOWN_MAX = 65_536
UNKNOWN_MAX = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTimes:
    """How long something heard is believed, ns.

    Attributes:
        known_ns: of a name that stands for an adapter; then it is asked for beside its use.
        unknown_ns: of one that stands for nothing.
        base_ns: of one that stands for nothing but a base model, which few adapters ever hide.
    """

    known_ns: int = 30_000_000_000
    unknown_ns: int = 1_000_000_000
    base_ns: int = 60_000_000_000


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """What Redis says of one name of one tenant.

    Attributes:
        gone: revision under which it was removed; 0: no such is known.
    """

    record: AdapterRecord | None
    gone: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tenant's name stands for.

    Attributes:
        record: None: no adapter.
        ask: whether to ask Redis: beside the use of this answer, or first. If nobody answers, this
            is the best that is known.
    """

    record: AdapterRecord | None
    ask: Ask = "no"


@dataclass(frozen=True, slots=True)
class _Known:
    record: AdapterRecord
    heard_at_ns: int


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A name that stands for nothing.

    Attributes:
        revision: under which it was removed; what is older cannot bring it back.
    """

    revision: int
    heard_at_ns: int


class AdapterNames:
    """Every name heard of, the ones used last first to stay.

    A tenant's own adapters hide those that are everybody's, and both hide base models.
    """

    def __init__(self, times: NameTimes | None = None) -> None:
        self._times = times or NameTimes()
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._unknown: OrderedDict[Key, _Unknown] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known) + len(self._unknown)

    def find(self, tenant: TenantId, name: str, now_ns: int, *, is_base: bool) -> Answer:
        """What a request of the tenant means by a name.

        Args:
            is_base: a base model has the name, too.
        """
        ask: Ask = "no"
        believed_ns = self._times.base_ns if is_base else self._times.unknown_ns
        for key in _keys(tenant, name):
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                is_old = now_ns - known.heard_at_ns >= self._times.known_ns
                return Answer(known.record, "behind" if ask == "no" and is_old else ask)
            unknown = self._unknown.get(key)
            if unknown is None:
                ask = "first"
            elif ask == "no" and now_ns - unknown.heard_at_ns >= believed_ns:
                ask = "behind"
        return Answer(None, "no" if ask == "no" else "first")

    def on_told(self, tenant: TenantId, name: str, told: StoredAdapter, now_ns: int) -> None:
        """Redis answered for one name of one tenant (or of everybody)."""
        key = tenant, name
        if told.record is not None:
            self._on_record(key, told.record, now_ns)
        known = self._known.get(key)
        if known is None or known.record.revision <= told.gone:
            self._forget(key, told.gone, now_ns)
        else:
            self._known[key] = replace(known, heard_at_ns=now_ns)

    def on_changed(self, changed: AdapterChanged, now_ns: int) -> None:
        """Somebody changed what a name stands for."""
        key = changed.tenant, changed.name
        if changed.record is not None:
            self._on_record(key, changed.record, now_ns)
            return
        known = self._known.get(key)
        if known is None or known.record.revision <= changed.revision:
            self._forget(key, changed.revision, now_ns)

    def known(self, owner: TenantId, name: str) -> AdapterRecord | None:
        """What stands under a name of one tenant, or of everybody, as far as is known."""
        known = self._known.get((owner, name))
        return None if known is None else known.record

    def known_to(self, tenant: TenantId) -> Iterator[AdapterRecord]:
        """What of the tenant's own and of everybody's is known."""
        for (owner, _), known in self._known.items():
            if owner in (tenant, EVERYBODY):
                yield known.record

    def _on_record(self, key: Key, record: AdapterRecord, now_ns: int) -> None:
        known, unknown = self._known.get(key), self._unknown.get(key)
        if known is not None and known.record.revision > record.revision:
            return
        if unknown is not None and unknown.revision >= record.revision:
            return
        self._unknown.pop(key, None)
        self._known[key] = _Known(record, now_ns)
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _forget(self, key: Key, revision: int, now_ns: int) -> None:
        unknown = self._unknown.get(key)
        if unknown is not None:
            revision = max(revision, unknown.revision)
        self._known.pop(key, None)
        self._unknown[key] = _Unknown(revision, now_ns)
        self._unknown.move_to_end(key)
        if len(self._unknown) > UNKNOWN_MAX:
            self._unknown.popitem(last=False)


def _keys(tenant: TenantId, name: str) -> tuple[Key, ...]:
    return ((tenant, name), (EVERYBODY, name))
