"""Sums of what was seen, of a session, of its application and of its tenant: where little is known
of a narrow one, the broader ones speak.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shared.ids import SessionId, TenantId

TENANTS_MAX = 10_000
APPLICATIONS_MAX = 20_000
SESSIONS_MAX = 100_000

Key = tuple[str, ...]


class Whose(NamedTuple):
    """Attributes:
    application: the agent that an advisory names, else the model; empty: neither.
    """

    tenant: TenantId
    application: str
    session_id: SessionId


@dataclass(slots=True)
class Sums:
    """Attributes:
    num: observations, each of which weighs less the older it is.
    first, second: sums of two things over them.
    """

    num: float
    first: float
    second: float
    at_ns: int

    def age(self, now_ns: int, half_life_ns: int) -> "Sums":
        """The same, as it weighs now."""
        left: float = 0.5 ** (max(now_ns - self.at_ns, 0) / half_life_ns)
        self.num *= left
        self.first *= left
        self.second *= left
        self.at_ns = max(now_ns, self.at_ns)
        return self


class Levels:
    """Sums by tenant, application and session. Of too many, those that were told of first go.

    Args:
        half_life_ns: what was seen so long ago weighs half.
    """

    def __init__(self, half_life_ns: int) -> None:
        self._half_life_ns = half_life_ns
        self._tables: tuple[tuple[OrderedDict[Key, Sums], int], ...] = (
            (OrderedDict(), TENANTS_MAX),
            (OrderedDict(), APPLICATIONS_MAX),
            (OrderedDict(), SESSIONS_MAX),
        )

    def add(self, whose: Whose, first: float, second: float, now_ns: int) -> None:
        """One observation."""
        for (table, entries_max), key in zip(self._tables, _keys(whose), strict=True):
            sums = table.get(key)
            if sums is None:
                sums = table[key] = Sums(0.0, 0.0, 0.0, now_ns)
                if len(table) > entries_max:
                    table.popitem(last=False)
            else:
                table.move_to_end(key)
                sums.age(now_ns, self._half_life_ns)
            sums.num += 1.0
            sums.first += first
            sums.second += second

    def read(self, whose: Whose, now_ns: int) -> Iterator[Sums]:
        """What is known, the broadest first."""
        for (table, _), key in zip(self._tables, _keys(whose), strict=True):
            if (sums := table.get(key)) is not None:
                yield sums.age(now_ns, self._half_life_ns)

    def tenants(self, now_ns: int) -> Iterator[tuple[TenantId, Sums]]:
        """Of all tenants, those that were told of last first."""
        for key, sums in reversed(self._tables[0][0].items()):
            yield TenantId(key[0]), sums.age(now_ns, self._half_life_ns)


def _keys(whose: Whose) -> tuple[Key, Key, Key]:
    tenant, application, session_id = whose
    return (tenant,), (tenant, application), (tenant, session_id)
