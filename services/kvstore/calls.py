"""Workers' calls, parsed into the core's events."""

from services.kvstore.core import Commit, NewBlock, Open, Release, RemotePrefix, Renew, Stage
from services.kvstore.tiers.values import LAYERS_MAX
from shared.blocks import KEY_BYTES, BlockKey, unpack_keys
from shared.errors import InvalidRequest
from shared.expiry import EXPIRY_S_MAX, is_expiry_s, rounded_expiry_s
from shared.ids import TenantId, subject_token
from shared.owners import OWNER_BYTES, OwnerKey, owner_key
from shared.wire import messages as m
from shared.wire.messages.codec import unpack_ints

NUM_BEFORE_MAX = 1 << 31  # blocks: no sequence has as many
PAGE_BYTES_MAX = 1024**3
STAGED_FIELDS_BYTES = 512  # of an answer to a stage, besides what it says of each block


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


def open_event(message: m.KvOpen) -> Open:
    """Raises:
    InvalidRequest: a field of it is not what it should be, and is named.
    """
    path_token(message.worker_id, "worker_id")
    if not 0 < message.num_layers <= LAYERS_MAX:
        raise InvalidRequest(f"num_layers must be 1 to {LAYERS_MAX}", "num_layers")
    if not 0 < message.page_bytes <= PAGE_BYTES_MAX:
        raise InvalidRequest(f"page_bytes must be 1 to {PAGE_BYTES_MAX}", "page_bytes")
    return Open(
        worker_id=message.worker_id,
        incarnation=path_token(message.incarnation, "incarnation"),
        fingerprint=message.fingerprint,
        num_layers=message.num_layers,
        page_bytes=message.page_bytes,
    )


def stage_event(
    message: m.KvStage, keys: list[BlockKey], remote: RemotePrefix | None, payload_bytes_max: int
) -> Stage:
    """Args:
    remote: where blocks are that this host lacks, if anywhere.
    payload_bytes_max: of the answer.
    """
    return Stage(
        worker_id=message.worker_id,
        incarnation=message.incarnation,
        num_layers=message.num_layers,
        page_bytes=message.page_bytes,
        keys=keys,
        priority=message.priority,
        blocks_max=staged_blocks_max(payload_bytes_max, message),
        hinted_by=_session_of(message) if message.is_hint else None,
        offer=remote,
        fingerprint=message.fingerprint,
        num_before=min(max(message.num_before, 0), NUM_BEFORE_MAX),
    )


def _session_of(message: m.KvStage) -> tuple[TenantId, OwnerKey]:
    return message.tenant, owner_key(message.tenant, message.session_id)


def staged_blocks_max(payload_bytes_max: int, stage: m.KvStage) -> int:
    """Blocks whose pages fit the answer to a stage: a page's number and its generation are 4 bytes
    each, in base64, and a promise for each layer 8; the key is in hex.

    >>> stage = m.KvStage(
    ...     worker_id="w", incarnation="i", fingerprint="f", num_layers=30, page_bytes=1
    ... )
    >>> staged_blocks_max(1024**2, stage)
    2976
    """
    num_layers = max(stage.num_layers, 1)
    block_bytes = num_layers * 2 * 4 * 4 / 3 + 2 * KEY_BYTES
    promised_bytes = num_layers * 8 * 4 / 3
    return max(int((payload_bytes_max - STAGED_FIELDS_BYTES - promised_bytes) / block_bytes), 0)


def renew_event(message: m.KvRenew) -> Renew:
    """Raises:
    InvalidRequest, MalformedMessage: a field of it cannot be read.
    """
    return Renew(
        worker_id=message.worker_id, incarnation=message.incarnation,
        tickets=unpack_ints(message.tickets, "Q"), page_bytes=message.page_bytes,
        leased=unpack_ints(message.leased), last_lease=message.heard,
        used=keys_in(message.used, "used"),
    )  # fmt: skip


def release_event(message: m.KvRelease) -> Release:
    """Raises:
    MalformedMessage: its pages cannot be read.
    """
    return Release(
        worker_id=message.worker_id, incarnation=message.incarnation, ticket=message.ticket,
        page_bytes=message.page_bytes, pages=unpack_ints(message.pages), seq=message.seq,
        last_lease=message.heard, num_kept=message.num_kept,
    )  # fmt: skip


def commit_event(message: m.KvCommit) -> Commit:
    """Raises:
    InvalidRequest, MalformedMessage: a block of it cannot be read.
    """
    return Commit(
        worker_id=message.worker_id, incarnation=message.incarnation,
        fingerprint=message.fingerprint, page_bytes=message.page_bytes,
        blocks=[new_block(block) for block in message.blocks], seq=message.seq,
        last_lease=message.heard,
    )  # fmt: skip


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
