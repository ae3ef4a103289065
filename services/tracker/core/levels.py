"""Sums of observations by session, application and tenant: where a narrow one has few, broader ones
are used.
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


class HintSource(NamedTuple):
    """Attributes:
    application: the agent that an advisory names, else the model; empty: neither.
    has_kv: the session had KV when its turn was announced.
    """

    tenant: TenantId
    application: str
    session_id: SessionId
    has_kv: bool = True


@dataclass(slots=True)
class Sums:
    """Attributes:
    num: observations, each of which weighs less the older it is.
    first, second: sums of two quantities over them.
    """

    num: float
    first: float
    second: float
    at_ns: int

    def age(self, now_ns: int, half_life_ns: int) -> "Sums":
        """Decay the sums to this instant."""
        left: float = 0.5 ** (max(now_ns - self.at_ns, 0) / half_life_ns)
        self.num *= left
        self.first *= left
        self.second *= left
        self.at_ns = max(now_ns, self.at_ns)
        return self


class Levels:
    """Sums by tenant, application and session. Above the limits, the least recently updated go.
    Of an application, sessions with KV are apart: what is said of invented ones teaches nothing
    about them.

    Args:
        half_life_ns: age at which an observation weighs half.
    """

    def __init__(self, half_life_ns: int) -> None:
        self._half_life_ns = half_life_ns
        self._tables: tuple[tuple[OrderedDict[Key, Sums], int], ...] = (
            (OrderedDict(), TENANTS_MAX),
            (OrderedDict(), APPLICATIONS_MAX),
            (OrderedDict(), SESSIONS_MAX),
        )

    def add(
        self, source: HintSource, first: float, second: float, now_ns: int, weight: float = 1.0
    ) -> None:
        """Add an observation, to those of its application with this weight."""
        weights = 1.0, weight, 1.0
        for (table, entries_max), key, part in zip(
            self._tables, _keys(source), weights, strict=True
        ):
            sums = table.get(key)
            if sums is None:
                sums = table[key] = Sums(0.0, 0.0, 0.0, now_ns)
                if len(table) > entries_max:
                    table.popitem(last=False)
            else:
                table.move_to_end(key)
                sums.age(now_ns, self._half_life_ns)
            sums.num += part
            sums.first += part * first
            sums.second += part * second

    def read(self, source: HintSource, now_ns: int) -> Iterator[Sums]:
        """The sums of each level that has any, the broadest first."""
        for (table, _), key in zip(self._tables, _keys(source), strict=True):
            if (sums := table.get(key)) is not None:
                yield sums.age(now_ns, self._half_life_ns)

    def of_session(self, source: HintSource, now_ns: int) -> Sums:
        """The sums of the session alone."""
        sums = self._tables[2][0].get(_keys(source)[2])
        return Sums(0.0, 0.0, 0.0, now_ns) if sums is None else sums.age(now_ns, self._half_life_ns)

    def has_other(self, tenant: TenantId) -> bool:
        """Whether another tenant than this one has sums."""
        table = self._tables[0][0]
        return len(table) > ((tenant,) in table)

    def tenants(self, now_ns: int) -> Iterator[tuple[TenantId, Sums]]:
        """The sums of all tenants, the most recently updated first."""
        for key, sums in reversed(self._tables[0][0].items()):
            yield TenantId(key[0]), sums.age(now_ns, self._half_life_ns)


def _keys(source: HintSource) -> tuple[Key, Key, Key]:
    tenant, application, session_id, has_kv = source
    of_application = (tenant, application) if has_kv else (tenant, application, "no KV")
    return (tenant,), of_application, (tenant, session_id)
