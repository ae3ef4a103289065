"""What this frontend knows of the names of adapters, and when it has to ask Redis.

Changes are reported as they are made; older adapters are read from Redis, once. Where two sources
differ the higher revision counts, so their order does not matter. A known name stays known until
its removal is reported: if Redis does not have it, Redis may have been wiped.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shared.adapters.record import EVERYBODY
from shared.ids import TenantId
from shared.wire.messages import AdapterChanged, AdapterRecord

Key = tuple[TenantId, str]
Ask = Literal["no", "behind", "first"]

KNOWN_MAX = 65_536
UNKNOWN_MAX = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTimes:
    """How long answers are good for, ns.

    Attributes:
        known_ns: of a name of an adapter; after this it is used, and looked up again meanwhile.
        unknown_ns: of a name that nothing has.
        base_ns: of a name that only a base model has: few adapters ever hide one.
    """

    known_ns: int = 30_000_000_000
    unknown_ns: int = 1_000_000_000
    base_ns: int = 60_000_000_000


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """What Redis has for one name of one tenant.

    Attributes:
        gone: revision of its removal; 0: no removal is known.
    """

    record: AdapterRecord | None
    gone: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a name means to a tenant.

    Attributes:
        record: None: no adapter.
        ask: whether to ask Redis: in the background, or first. If it does not answer, this answer
            is the best there is.
    """

    record: AdapterRecord | None
    ask: Ask = "no"


@dataclass(frozen=True, slots=True)
class _Known:
    record: AdapterRecord
    known_at_ns: int


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A name that no adapter has.

    Attributes:
        revision: of its removal; older records cannot bring it back.
    """

    revision: int
    known_at_ns: int


class AdapterNames:
    """Every name that was reported or asked for; of too many, the least recently used are dropped.

    A tenant's own adapters hide shared ones, and both hide base models.
    """

    def __init__(self, times: NameTimes | None = None) -> None:
        self._times = times or NameTimes()
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._unknown: OrderedDict[Key, _Unknown] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known) + len(self._unknown)

    def find(self, tenant: TenantId, name: str, now_ns: int, *, is_base: bool) -> Answer:
        """The adapter that a name means in a request of the tenant.

        Args:
            is_base: a base model has the name, too.
        """
        ask: Ask = "no"
        believed_ns = self._times.base_ns if is_base else self._times.unknown_ns
        for key in _keys(tenant, name):
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                is_old = now_ns - known.known_at_ns >= self._times.known_ns
                return Answer(known.record, "behind" if ask == "no" and is_old else ask)
            unknown = self._unknown.get(key)
            if unknown is None:
                ask = "first"
            elif ask == "no" and now_ns - unknown.known_at_ns >= believed_ns:
                ask = "behind"
        return Answer(None, "no" if ask == "no" else "first")

    def on_stored(self, tenant: TenantId, name: str, stored: StoredAdapter, now_ns: int) -> None:
        """Redis answered for one name of one owner."""
        key = tenant, name
        if stored.record is not None:
            self._on_record(key, stored.record, now_ns)
        known = self._known.get(key)
        if known is None or known.record.revision <= stored.gone:
            self._forget(key, stored.gone, now_ns)
        else:
            self._known[key] = replace(known, known_at_ns=now_ns)

    def on_changed(self, changed: AdapterChanged, now_ns: int) -> None:
        """An adapter was added, replaced or removed."""
        key = changed.tenant, changed.name
        if changed.record is not None:
            self._on_record(key, changed.record, now_ns)
            return
        known = self._known.get(key)
        if known is None or known.record.revision <= changed.revision:
            self._forget(key, changed.revision, now_ns)

    def known(self, owner: TenantId, name: str) -> AdapterRecord | None:
        """The adapter of this name that `owner` has, as far as is known."""
        known = self._known.get((owner, name))
        return None if known is None else known.record

    def known_to(self, tenant: TenantId) -> Iterator[AdapterRecord]:
        """Known adapters of the tenant, and shared ones."""
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
