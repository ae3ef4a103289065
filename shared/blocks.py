"""Block keys: the chain hash that names a run of tokens in the KV cache.

A key covers the whole prefix up to its block's end, the model (weights, dtype, KV layout), the
adapter's content and the tenant's salt, so equal prefixes are shared within a tenant and never
across tenants, and stale KV cannot be met under a reused name. Keys are 16 raw bytes; on the wire
they travel as hex, packed one after the other.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType

from shared.errors import MalformedMessage

BlockKey = NewType("BlockKey", bytes)

BLOCK_TOKENS = 64
KEY_BYTES = 16
PREFIX_BLOCKS_MAX = 128  # of what an agent's prompts all begin with: 8,192 tokens
IMAGE_SALT = "adapter image 1"  # counts how images are laid out
NO_PARENT = BlockKey(bytes(KEY_BYTES))  # where what stands before a block is not known


def root_key(fingerprint: str, tenant: str, adapter_hash: str = "", salt: str = "") -> BlockKey:
    """Parent of a sequence's first block.

    Args:
        fingerprint: `ModelCard.fingerprint` of the weights, dtype and KV layout.
        tenant: owner of the session; prefixes are never shared across tenants.
        adapter_hash: content hash of the LoRA adapter, empty for the base model.
        salt: the request's own ``cache_salt``, empty when it gave none.
    """
    digest = blake2b(digest_size=KEY_BYTES)
    for part in (fingerprint, tenant, adapter_hash, salt):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return BlockKey(digest.digest())


def sequence_root(root: BlockKey, num_tokens: int, short_rope_max: int) -> BlockKey:
    """Parent of the first block of a sequence of so many tokens.

    Args:
        root: of the shorter sequences, see `root_key`.
        num_tokens: of the whole sequence: a prompt's, and what was generated behind it.
        short_rope_max: `ModelCard.short_rope_max`: KV of longer sequences is of another kind.
    """
    if not 0 < short_rope_max < num_tokens:
        return root
    return BlockKey(blake2b(b"long rope", key=root, digest_size=KEY_BYTES).digest())


def child_key(parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """Key of the block that holds `tokens` after `parent`: one block of them, or the last ones of a
    sequence, if they are fewer."""
    return BlockKey(
        blake2b(array("i", tokens).tobytes(), key=parent, digest_size=KEY_BYTES).digest()
    )


def chain_keys(
    root: BlockKey, tokens: Sequence[int], block_tokens: int = BLOCK_TOKENS
) -> list[BlockKey]:
    """Keys of every full block of `tokens`, in order; a partial last block has none.

    >>> len(chain_keys(root_key("m", "t"), range(130), block_tokens=64))
    2
    """
    keys: list[BlockKey] = []
    parent = root
    packed = array("i", tokens)
    raw, size = memoryview(packed).cast("B"), block_tokens * packed.itemsize
    for start in range(0, len(raw) - size + 1, size):
        block = raw[start : start + size]
        parent = BlockKey(blake2b(block, key=parent, digest_size=KEY_BYTES).digest())
        keys.append(parent)
    return keys


def image_keys(fingerprint: str, adapter_hash: str, num_blocks: int) -> list[BlockKey]:
    """Keys of the blocks of an adapter's image (`shared.adapters.layout`) for this model.

    No tenant is empty, so that no KV can have one of them.
    """
    root = image_root(fingerprint, adapter_hash)
    return chain_keys(root, range(num_blocks), block_tokens=1)


def image_root(fingerprint: str, adapter_hash: str) -> BlockKey:
    """Parent of an image's first block. Block `i` has the one token `i`."""
    return root_key(fingerprint, "", adapter_hash, IMAGE_SALT)


def pack_keys(keys: Sequence[BlockKey]) -> str:
    """Keys as one hex string, for messages and session records."""
    return b"".join(keys).hex()


def prefix_keys(packed: str) -> list[BlockKey]:
    """Of a message: what an agent's prompts begin with, as much of it as a correct sender sends.

    Raises:
        MalformedMessage: something else is in its place.
    """
    try:
        return unpack_keys(packed[: PREFIX_BLOCKS_MAX * 2 * KEY_BYTES])
    except ValueError as error:
        raise MalformedMessage(f"keys: {error}", "keys") from None


def unpack_keys(packed: str) -> list[BlockKey]:
    """Inverse of `pack_keys`.

    Raises:
        ValueError: not hex, or not a whole number of keys.
    """
    raw = bytes.fromhex(packed)
    if len(raw) % KEY_BYTES:
        raise ValueError(f"{len(raw)} bytes are no whole number of {KEY_BYTES}-byte block keys")
    return [BlockKey(raw[i : i + KEY_BYTES]) for i in range(0, len(raw), KEY_BYTES)]
