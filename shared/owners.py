"""Who made a block: what lets everything that a session left behind be found again, its record or
not.
"""

from hashlib import blake2b
from typing import NewType

from shared.blocks import BlockKey
from shared.ids import SessionId, TenantId

OwnerKey = NewType("OwnerKey", bytes)

OWNER_BYTES = 16
NOBODY = OwnerKey(bytes(OWNER_BYTES))  # a turn without a session, or a release that did not note it


def owner_key(tenant: TenantId, session_id: SessionId | None) -> OwnerKey:
    """A session's name in 16 bytes. Lengths keep two tenants' ids from meeting.

    >>> owner_key(TenantId("a"), None) == NOBODY
    True
    """
    if session_id is None:
        return NOBODY
    digest = blake2b(digest_size=OWNER_BYTES, person=b"symphony-owner")
    for part in (tenant, session_id):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return OwnerKey(digest.digest())


class OwnedKeys:
    """Which blocks each session made. Nobody's are not listed."""

    def __init__(self) -> None:
        self._keys: dict[OwnerKey, dict[BlockKey, None]] = {}  # sets would take twice as much

    @property
    def owners(self) -> list[OwnerKey]:
        """Who made any that is not gone."""
        return list(self._keys)

    def add(self, owner: OwnerKey, key: BlockKey) -> None:
        """`owner` made this block."""
        if owner != NOBODY:
            self._keys.setdefault(owner, {})[key] = None

    def remove(self, owner: OwnerKey, key: BlockKey) -> None:
        """The block is gone."""
        if (keys := self._keys.get(owner)) is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys[owner]

    def clear(self) -> None:
        """Every block is gone."""
        self._keys.clear()

    def of(self, owner: OwnerKey) -> list[BlockKey]:
        """What `owner` made and is not gone, in the order in which it came."""
        return list(self._keys.get(owner, ()))

    def last_of(self, owner: OwnerKey) -> BlockKey | None:
        """The one of those that came last."""
        return next(reversed(self._keys.get(owner, {})), None)

    def num_of(self, owner: OwnerKey) -> int:
        """How many those are."""
        return len(self._keys.get(owner, ()))
