"""What workers' calls hold, parsed."""

from services.kvstore.core import NewBlock
from shared import messages as m
from shared.blocks import BlockKey, unpack_keys
from shared.errors import InvalidRequest
from shared.expiry import EXPIRY_S_MAX, is_expiry_s, rounded_expiry_s
from shared.ids import subject_token
from shared.messages.codec import unpack_ints
from shared.owners import OWNER_BYTES, OwnerKey


def path_token(text: str, param: str) -> str:
    """`text`, which can be part of a file's name.

    Raises:
        InvalidRequest: it cannot; names `param`.
    """
    try:
        return subject_token(text)
    except ValueError as error:
        raise InvalidRequest(str(error), param) from None


def keys_in(packed: str, param: str) -> list[BlockKey]:
    """Keys of blocks.

    Raises:
        InvalidRequest: something else is in their place; names `param`.
    """
    try:
        return unpack_keys(packed)
    except ValueError as error:
        raise InvalidRequest(str(error), param) from None


def new_block(block: m.KvBlock) -> NewBlock:
    """A block of a commit.

    Raises:
        InvalidRequest: a field of it is not what it should be, and is named.
        MalformedMessage: its numbers cannot be read.
    """
    keys = keys_in(block.key + block.parent, "key")
    if len(keys) != 2:
        raise InvalidRequest("a block has one key and one parent", "key")
    replaces = keys_in(block.replaces, "replaces")
    if len(replaces) > 1:
        raise InvalidRequest(
            f"replaces: a block takes the place of one, not {len(replaces)}", "replaces"
        )
    if not is_expiry_s(block.expiry_s):
        raise InvalidRequest(f"expiry_s must be 0 to {EXPIRY_S_MAX}", "expiry_s")
    return NewBlock(
        key=keys[0],
        parent=keys[1],
        tokens=unpack_ints(block.tokens),
        pages=unpack_ints(block.pages),
        checksums=unpack_ints(block.checksums, "Q"),
        owner=_unpack_owner(block.owner),
        replaces=replaces[0] if replaces else None,
        expiry_s=rounded_expiry_s(block.expiry_s),
    )


def _unpack_owner(text: str) -> OwnerKey:
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise InvalidRequest(str(error), "owner") from None
    if len(raw) != OWNER_BYTES:
        raise InvalidRequest(f"an owner has {OWNER_BYTES} bytes", "owner")
    return OwnerKey(raw)
