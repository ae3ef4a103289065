"""A cache of results by tenant, with one limit on the bytes of all.

A tenant finds only its own results, and evictions hit the tenant that holds most: no tenant can
evict another's results by filling the cache.
"""

from collections import OrderedDict

ENTRY_BYTES = 512  # of an entry, beside its value


class TenantCache:
    """Args:
    bytes_max: of all that is kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[str, OrderedDict[bytes, str]] = {}
        self._num_bytes: dict[str, int] = {}

    def get(self, tenant: str, key: bytes) -> str | None:
        """A tenant's value, now its most recently used."""
        kept = self._kept.get(tenant)
        if kept is None or key not in kept:
            return None
        kept.move_to_end(key)
        return kept[key]

    def put(self, tenant: str, key: bytes, value: str) -> None:
        """Keep a value. While all are too large, drop the oldest value of the largest tenant."""
        self._drop(tenant, key)
        self._kept.setdefault(tenant, OrderedDict())[key] = value
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + _size(value)
        while sum(self._num_bytes.values()) > self._bytes_max:
            most = max(self._num_bytes, key=self._num_bytes.__getitem__)
            self._drop(most, next(iter(self._kept[most])))

    def _drop(self, tenant: str, key: bytes) -> None:
        kept = self._kept.get(tenant)
        if kept is None or key not in kept:
            return
        self._num_bytes[tenant] -= _size(kept.pop(key))
        if not kept:
            del self._kept[tenant], self._num_bytes[tenant]


def _size(value: str) -> int:
    return ENTRY_BYTES + 4 * len(value)
