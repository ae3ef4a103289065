"""What expected sessions may keep in the pool: a share of its pages, and each tenant or session a
share of them. A hint is a guess: a sender of many must not crowd out others' pages.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from shared.blocks import BlockKey
from shared.hints import HintShares
from shared.ids import TenantId
from shared.owners import OwnerKey

STALE_MIN = 64

HintName = tuple[OwnerKey, str]  # a session, and the hash of the adapter; empty: its history


@dataclass(frozen=True, slots=True)
class Hint:
    """Blocks that an expected session will run on."""

    tenant: TenantId
    keys: list[BlockKey]
    num_pages: int
    expires_at_ns: int


@dataclass(slots=True)
class Hints:
    """Args:
    shares: of the pool's pages.
    """

    shares: HintShares
    _hints: dict[OwnerKey, dict[str, Hint]] = field(default_factory=dict)
    _expiries: list[tuple[int, HintName]] = field(default_factory=list)  # a heap; some are stale
    _num_hints: int = 0

    def room(self, name: HintName, tenant: TenantId, now_ns: int) -> int:
        """Pages that a hint may keep, which takes the place of an earlier one of this name."""
        self._expire(now_ns)
        self._remove(name)
        return self.shares.room(tenant, name[0])

    def add(self, name: HintName, hint: Hint) -> None:
        """Keep this; there is `room` for it."""
        self._num_hints += 1
        owner, adapter_hash = name
        self.shares.take(hint.tenant, owner, hint.num_pages)
        self._hints.setdefault(owner, {})[adapter_hash] = hint
        heappush(self._expiries, (hint.expires_at_ns, name))
        if len(self._expiries) > 2 * self._num_hints + STALE_MIN:
            self._expiries = sorted(
                (each.expires_at_ns, (of, what))
                for of, hints in self._hints.items()
                for what, each in hints.items()
            )

    def expires_at_ns(self, name: HintName) -> int:
        """Until when its blocks are kept; 0: it keeps none."""
        hint = self._hints.get(name[0], {}).get(name[1])
        return 0 if hint is None else hint.expires_at_ns

    def take_all(self, owner: OwnerKey) -> list[Hint]:
        """A session's hints, which need no room any more."""
        hints = list(self._hints.pop(owner, {}).values())
        for hint in hints:
            self._give(owner, hint)
        return hints

    def _remove(self, name: HintName) -> None:
        owner, adapter_hash = name
        hints = self._hints.get(owner, {})
        if (hint := hints.pop(adapter_hash, None)) is not None:
            self._give(owner, hint)
            if not hints:
                del self._hints[owner]

    def _give(self, owner: OwnerKey, hint: Hint) -> None:
        self._num_hints -= 1
        self.shares.give(hint.tenant, owner, hint.num_pages)

    def _expire(self, now_ns: int) -> None:
        while self._expiries and self._expiries[0][0] <= now_ns:
            _, name = heappop(self._expiries)
            if self.expires_at_ns(name) <= now_ns:
                self._remove(name)
