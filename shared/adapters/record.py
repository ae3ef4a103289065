"""Names of adapters, and their index in Redis.

The kvstore that has an adapter's files is right about it. Redis says for each tenant which name
stands for what; of two that say something else the higher revision counts. A name that was removed
leaves a note for a day: its absence alone may only mean that Redis was wiped.
"""

import re

from shared.errors import InvalidRequest
from shared.ids import TenantId
from shared.wire.messages.codec import decode, encode
from shared.wire.messages.registry import AdapterRecord

EVERYBODY = TenantId("")
NAME_CHARS_MAX = 128
GONE_S = 24 * 3600
GONE_MAX = 10_000  # notes on removed names of one tenant: then it gets no further names
ADAPTER_BYTES_MAX = 2 * 1024**3  # unless a setting says otherwise
BASE_SEPARATOR = ":"  # of ``BASE:NAME``; no name has one

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")


class AdapterExists(InvalidRequest):
    """The name is taken by another adapter."""

    code = "adapter_exists"

    def __init__(self, name: str) -> None:
        # vLLM's words
        super().__init__(
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
            "in place, set 'load_inplace' to True.",
            "lora_name",
        )


def is_adapter_name(name: str) -> bool:
    """Whether an adapter can have this name.

    >>> is_adapter_name("a/b"), is_adapter_name("a/../b"), is_adapter_name("a:b")
    (True, False, False)
    """
    return len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) is not None


def check_adapter_name(name: str) -> str:
    """Return `name` if an adapter can have it.

    Raises:
        InvalidRequest: it cannot.

    >>> check_adapter_name("acme/support-v2")
    'acme/support-v2'
    """
    if not is_adapter_name(name):
        raise InvalidRequest(
            f"lora_name: {name[:NAME_CHARS_MAX]!r}: give 1 to {NAME_CHARS_MAX} letters, digits, "
            "'.', '-', '_' and '/', beginning with a letter or digit behind each '/' too",
            "lora_name",
            code="lora_name",
        )
    return name


def adapters_redis_key(tenant: TenantId) -> str:
    """Hash of the tenant's records, by name.

    >>> adapters_redis_key(TenantId("acme"))
    'symphony:adapters:4:acme'
    """
    return f"symphony:adapters:{len(tenant)}:{tenant}"


def adapter_gone_redis_key(tenant: TenantId, name: str) -> str:
    """Revision under which a name was removed, for `GONE_S`."""
    return f"symphony:adapter_gone:{len(tenant)}:{tenant}:{name}"


def adapters_gone_redis_key(tenant: TenantId) -> str:
    """Sorted set of the tenant's removed names, by when their notes expire."""
    return f"symphony:adapters_gone:{len(tenant)}:{tenant}"


def host_adapters_redis_key(host_id: str) -> str:
    """Set of what a host has published: `adapter_member` of each."""
    return f"symphony:host:{host_id}:adapters"


def host_state_redis_key(host_id: str) -> str:
    """What a host has published, as one hash: another value, or none, means that Redis lost it."""
    return f"symphony:host:{host_id}:adapters_state"


def adapter_member(tenant: TenantId, name: str) -> str:
    """A tenant and a name as one text. No name has a line break."""
    return f"{tenant}\n{name}"


def of_member(member: str) -> tuple[TenantId, str]:
    """Inverse of `adapter_member`.

    >>> of_member(adapter_member(TenantId("a"), "n"))
    ('a', 'n')
    """
    tenant, _, name = member.rpartition("\n")
    return TenantId(tenant), name


def encode_adapter(record: AdapterRecord) -> bytes:
    """Record to the bytes in Redis and on disk."""
    return encode(record)


def decode_adapter(data: bytes) -> AdapterRecord:
    """Inverse of `encode_adapter`.

    Raises:
        MalformedMessage: no record of this release.
    """
    return decode(AdapterRecord, data)


__all__ = ["AdapterRecord"]
