"""Strong id types and their maker.

Ids are opaque strings. An id that becomes a NATS subject token (worker, frontend, host) must hold
only letters, digits, ``-`` and ``_``; `subject_token` checks that.
"""

import re
import zlib
from typing import NewType

from shared.randomness import random_bytes

TurnId = NewType("TurnId", str)
SessionId = NewType("SessionId", str)
WorkerId = NewType("WorkerId", str)
FrontendId = NewType("FrontendId", str)
HostId = NewType("HostId", str)
ModelId = NewType("ModelId", str)
JobId = NewType("JobId", str)
BatchId = NewType("BatchId", str)
TenantId = NewType("TenantId", str)

DEFAULT_TENANT = TenantId("default")

REQUEST_ID_CHARS = 64  # that a job's id takes along
TENANT_TOKEN_CHARS_MAX = 200  # it is part of a file's name, too
_PLAIN = re.compile(r"[A-Za-z0-9-]")
_SUBJECT_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_id(prefix: str) -> str:
    """A fresh random id such as ``turn-3f9c...`` (96 random bits)."""
    return f"{prefix}-{random_bytes(12).hex()}"


def public_id(prefix: str, begins: str = "") -> str:
    """A fresh random id as clients of OpenAI's and Anthropic's know them: ``msg_3f9c...``."""
    return f"{prefix}_{begins}{random_bytes(12).hex()}"


def job_group(request_id: str) -> str:
    """A fresh id for the jobs of one request, from which `request_of_job` gets the request."""
    return f"{new_id('job')}:{request_id[:REQUEST_ID_CHARS]}"


def request_of_job(job_id: JobId) -> str:
    """What the client calls the request that a job belongs to; empty if that is not known.

    >>> request_of_job(JobId("job-3f9c:my-request-7"))
    'my-request'
    """
    return job_id.partition(":")[2].rpartition("-")[0]


def subject_token(text: str) -> str:
    """Return `text` if it can stand as one token of a NATS subject.

    Raises:
        ValueError: it is empty, too long, or holds a character with a meaning in subjects.

    >>> subject_token("host-1")
    'host-1'
    """
    if not _SUBJECT_TOKEN.fullmatch(text):
        raise ValueError(f"{text!r} is no valid id: use 1 to 64 letters, digits, '-' or '_'")
    return text


def tenant_token(tenant: TenantId) -> str:
    """One token of a NATS subject for a tenant of any name, and for no two the same.

    Raises:
        ValueError: the name is empty or too long.

    >>> tenant_token(TenantId("acme inc."))
    'acme_20inc_2e'
    """
    token = "".join(
        chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"_{byte:02x}" for byte in tenant.encode()
    )
    if not 0 < len(token) <= TENANT_TOKEN_CHARS_MAX:
        raise ValueError(
            f"tenant {tenant[:32]!r}: a name has 1 to {TENANT_TOKEN_CHARS_MAX} characters; all but "
            "ASCII letters, digits and '-' count three times or more"
        )
    return token


def tenant_of_token(token: str) -> TenantId:
    """The tenant of a `tenant_token`.

    Raises:
        ValueError: it is none.

    >>> tenant_of_token("acme_20inc_2e")
    'acme inc.'
    """
    raw = re.sub(r"_([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), token)
    try:
        tenant = TenantId(raw.encode("latin-1").decode())
    except UnicodeError:
        raise ValueError(f"{token!r} names no tenant") from None
    if tenant_token(tenant) != token:
        raise ValueError(f"{token!r} names no tenant")
    return tenant


def shard_of(model_id: ModelId, num_shards: int) -> int:
    """Which scheduler shard batches a model's jobs: the same in every process and release.

    >>> shard_of(ModelId("resnet"), 1)
    0
    """
    return zlib.crc32(model_id.encode()) % num_shards
