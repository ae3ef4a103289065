"""Connections that have not yet proven to know the secret: how many there may be, and which goes
when there is one more.

Places are shared by address. One connection more than there may be costs the address with the most
of them its oldest, first of those that have sent nothing. So an address that opens many has only
itself to wait for, and one that opens few gets in whatever others do.
"""

from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

Connection = TypeVar("Connection")

PREFIX_BITS = 64  # of an IPv6 address: the rest is for its network to choose


def group_of(address: str) -> str:
    """Of addresses that one host can have as many of as it likes, the same.

    >>> group_of("10.0.0.1"), group_of("::ffff:10.0.0.1")
    ('10.0.0.1', '10.0.0.1')
    >>> group_of("2001:db8::1:2:3:4") == group_of("2001:db8::9%eth0")
    True
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return hex(int(found) >> PREFIX_BITS)


class Unproven(Generic[Connection]):
    """Args:
    num_max: connections, of all groups together.
    """

    def __init__(self, num_max: int) -> None:
        assert num_max > 0, "a connection has to be somewhere until it is proven"
        self._num_max = num_max
        self._group_of: dict[Connection, str] = {}  # the oldest first
        self._groups: dict[str, dict[Connection, None]] = {}  # so are these, by group
        self._silent: dict[str, dict[Connection, None]] = {}  # and of them those that sent nothing

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._group_of

    @property
    def oldest(self) -> Connection | None:
        """None: there is none."""
        return next(iter(self._group_of), None)

    @property
    def all(self) -> list[Connection]:
        """The oldest first."""
        return list(self._group_of)

    def add(self, connection: Connection, group: str) -> Connection | None:
        """One more, which has sent nothing yet.

        Returns:
            The one that loses its place for it, or None.
        """
        lost = self.take() if len(self) >= self._num_max else None
        self._group_of[connection] = group
        for by_group in (self._groups, self._silent):
            by_group.setdefault(group, {})[connection] = None
        return lost

    def hear(self, connection: Connection) -> None:
        """It began as a host of the deployment does."""
        _discard(self._silent, self._group_of[connection], connection)

    def remove(self, connection: Connection) -> None:
        """It is proven, or gone."""
        group = self._group_of.pop(connection)
        for by_group in (self._groups, self._silent):
            _discard(by_group, group, connection)

    def take(self) -> Connection | None:
        """Take out the one that goes first; None: there is none."""
        if not self._groups:
            return None
        crowded = max(self._groups, key=lambda group: (len(self._groups[group]), group))
        connection = next(iter(self._silent.get(crowded) or self._groups[crowded]))
        self.remove(connection)
        return connection


def _discard(
    by_group: dict[str, dict[Connection, None]], group: str, connection: Connection
) -> None:
    found = by_group.get(group)
    if found is None or connection not in found:
        return
    del found[connection]
    if not found:
        del by_group[group]
