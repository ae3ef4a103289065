"""Limits on the connections from one address, and from all together."""

from ipaddress import IPv6Address, IPv6Network, ip_address

Network = str | int

KEPT_SHARE = 8  # of all connections one in so many is kept for addresses that have few
FEW = 8


class AddressLimits:
    """Open connections by the network that they come from.

    Args:
        per_address_max: from one IPv4 address, or from one IPv6 network of 64 bits, in which one
            machine has all addresses it likes; 0: any number.
        total_max: from all addresses together. The last ones of them are for addresses that have
            few.
    """

    def __init__(self, per_address_max: int, total_max: int) -> None:
        self._max = per_address_max
        self._total_max = total_max
        self._many = total_max - total_max // KEPT_SHARE
        self._total = 0
        self._num: dict[Network, int] = {}

    def enter(self, host: str | None) -> bool:
        """Whether there is room for one more; if so it is counted until `leave`.

        Args:
            host: None: not from a network, and not counted.
        """
        if host is None:
            return True
        place = network_of(host)
        num = self._num.get(place, 0)
        if self._max and num >= self._max:
            return False
        if self._total >= (self._many if num >= FEW else self._total_max):
            return False
        self._total += 1
        self._num[place] = num + 1
        return True

    def leave(self, host: str | None) -> None:
        """A connection that was let in has ended."""
        if host is None:
            return
        place = network_of(host)
        self._total -= 1
        num = self._num[place] - 1
        if num:
            self._num[place] = num
        else:
            del self._num[place]

    def __len__(self) -> int:
        """Networks that have connections."""
        return len(self._num)


def network_of(host: str) -> Network:
    """The network that a connection's address counts for.

    >>> network_of("10.0.0.7")
    '10.0.0.7'
    >>> network_of("::ffff:10.0.0.7")
    '10.0.0.7'
    >>> network_of("2001:db8::1") == network_of("2001:db8::ffff:2") != network_of("2001:db8:0:1::1")
    True
    """
    if ":" not in host:
        return host
    address = ip_address(host.partition("%")[0])  # without the name of a network card
    assert isinstance(address, IPv6Address)
    mapped = address.ipv4_mapped
    return int(address) >> 64 if mapped is None else str(mapped)


def network_name(host: str) -> str:
    """The same, for people.

    >>> network_name("10.0.0.7"), network_name("2001:db8::1")
    ('10.0.0.7', '2001:db8::/64')
    """
    place = network_of(host)
    return place if isinstance(place, str) else str(IPv6Network((place << 64, 64)))
