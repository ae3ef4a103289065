"""Which session made a block: so that all that a session left behind is found, with or without its
record.
"""

from hashlib import blake2b
from typing import NewType

from shared.blocks import BlockKey
from shared.ids import SessionId, TenantId

OwnerKey = NewType("OwnerKey", bytes)

OWNER_BYTES = 16
NO_OWNER = OwnerKey(bytes(OWNER_BYTES))  # of a turn without a session


def owner_key(tenant: TenantId, session_id: SessionId | None) -> OwnerKey:
    """A session's name in 16 bytes. Lengths keep two tenants' ids from meeting.

    >>> owner_key(TenantId("a"), None) == NO_OWNER
    True
    """
    if session_id is None:
        return NO_OWNER
    digest = blake2b(digest_size=OWNER_BYTES, person=b"symphony-owner")
    for part in (tenant, session_id):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return OwnerKey(digest.digest())


class OwnedKeys:
    """Which blocks each session made. Blocks without an owner are not listed."""

    def __init__(self) -> None:
        self._keys: dict[OwnerKey, dict[BlockKey, None]] = {}  # sets would take twice as much

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that made any that is not gone."""
        return list(self._keys)

    def add(self, owner: OwnerKey, key: BlockKey) -> None:
        """`owner` made this block."""
        if owner != NO_OWNER:
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
