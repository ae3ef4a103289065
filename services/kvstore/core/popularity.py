"""Which adapters are used so much, by all workers of a deployment together, that a host fetches
their files before a turn there asks for them.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HALF_LIFE_NS = 600_000_000_000  # age at which a use weighs half
USES_MIN = 8.0  # at once; or one in 108 s, for long
TABLE_MAX = 4096  # adapters; of more, those used last longest ago are forgotten
RETRY_NS = 600_000_000_000  # before an adapter is wanted once more


@dataclass(slots=True)
class _Uses:
    """Attributes:
    num: turns, each of which weighs less the older it is.
    wanted_at_ns: when it was found popular last.
    """

    num: float
    at_ns: int
    wanted_at_ns: int | None = None


class Popularity:
    """Counts the uses that workers report."""

    def __init__(self) -> None:
        self._uses: OrderedDict[str, _Uses] = OrderedDict()  # by hash; the latest used last

    def __len__(self) -> int:
        return len(self._uses)

    def on_used(
        self, uses: Mapping[str, int], now_ns: int, is_here: Callable[[str], bool]
    ) -> list[str]:
        """So many turns on these adapters have begun somewhere. Returns those that this host should
        fetch, the most used first.

        Args:
            uses: by hash.
            is_here: whether this host has an adapter's files.
        """
        wanted = []
        for adapter_hash, num in uses.items():
            found = self._uses.pop(adapter_hash, None) or _Uses(0.0, now_ns)
            self._uses[adapter_hash] = found
            age_ns = max(now_ns - found.at_ns, 0)
            found.num = found.num * 0.5 ** (age_ns / HALF_LIFE_NS) + max(num, 0)
            found.at_ns = now_ns
            last_ns = found.wanted_at_ns
            is_due = last_ns is None or now_ns - last_ns >= RETRY_NS
            if found.num >= USES_MIN and is_due and not is_here(adapter_hash):
                found.wanted_at_ns = now_ns
                wanted.append((found.num, adapter_hash))
        while len(self._uses) > TABLE_MAX:
            self._uses.popitem(last=False)
        return [adapter_hash for _, adapter_hash in sorted(wanted, reverse=True)]
