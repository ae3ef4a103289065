"""Where sessions' KV is, as Redis knows it: small, by session, and only a hint.

A session has a hash (`location_redis_key`): by host, how many of its leading blocks that host has
on disk or in memory, under a *life*. One hash for all hosts (`KV_HOSTS_KEY`) says which life of a
host is valid: everything under another is void, so that a host voids all that it ever wrote by one
write. A session's key has a hash of it (`shared.owners`), so that none of its names is there.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice

from shared.ids import HostId, subject_token
from shared.owners import OwnerKey

KV_HOSTS_KEY = "symphony:kv_hosts"
BLOCKS_MAX = 999_999_999  # of one session
HOSTS_SENT_MAX = 8  # of a session, the ones with the most blocks
OBJECTS_SENT_MAX = 2  # of those, what hosts wrote to the object store, which every host can read
OBJECTS_MARK = "@"  # before a host's name: not that host, but what it wrote to the object store
OBJECTS = HostId(OBJECTS_MARK)  # the object store as a whole
ANYWHERE = HostId("*")  # in place of hosts, where Redis could not be asked: any host may have it
_CLAIM = re.compile(rb"([A-Za-z0-9_-]{1,16}) ([0-9a-f]{16}) ([0-9]{1,10})")
_LOCATION = re.compile(rb"([A-Za-z0-9_-]{1,16}) ([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class HostClaim:
    """What a host says of all that it has said.

    Attributes:
        life: a word that it never used before.
        digest: of every session and its blocks, in any order; 64 bits.
    """

    life: str
    digest: int
    num_sessions: int


def objects_of(host_id: HostId) -> HostId:
    """What stands where a host's name does, for what that host wrote to the object store."""
    return HostId(OBJECTS_MARK + host_id)


def is_objects(place: HostId) -> bool:
    """Whether this is `objects_of` some host, and not a host."""
    return place.startswith(OBJECTS_MARK)


def location_redis_key(owner: OwnerKey) -> str:
    """Hash of host ids to `encode_location`.

    >>> location_redis_key(OwnerKey(bytes(16)))
    'symphony:kv:AAAAAAAAAAAAAAAAAAAAAA'
    """
    return f"symphony:kv:{urlsafe_b64encode(owner).decode().rstrip('=')}"


def encode_claim(claim: HostClaim) -> str:
    """A field of `KV_HOSTS_KEY`.

    >>> decode_claim(encode_claim(HostClaim("a-1", 255, 3)).encode())
    HostClaim(life='a-1', digest=255, num_sessions=3)
    """
    return f"{claim.life} {claim.digest:016x} {claim.num_sessions}"


def decode_claim(data: bytes | None) -> HostClaim | None:
    """Inverse of `encode_claim`; None: there is none, or something else is in its place."""
    found = _CLAIM.fullmatch(data) if data is not None else None
    return None if found is None else HostClaim(found[1].decode(), int(found[2], 16), int(found[3]))


def encode_location(life: str, num_blocks: int) -> str:
    """A field of a session's hash."""
    return f"{life} {num_blocks}"


def decode_lives(claims: Mapping[bytes, bytes]) -> dict[HostId, str]:
    """Which life of each host is valid."""
    lives: dict[HostId, str] = {}
    for name, data in claims.items():
        claim, host_id = decode_claim(data), _host_id(name)
        if claim is not None and host_id is not None:
            lives[host_id] = claim.life
    return lives


def decode_locations(
    fields: Mapping[bytes, bytes], lives: Mapping[HostId, str]
) -> dict[HostId, int]:
    """A session's leading blocks by host, most first, of at most `HOSTS_SENT_MAX` hosts. What hosts
    wrote to the object store is included, but only the most of it, so that it crowds out no host.
    What is void, or not written as it should be, is left out.

    >>> decode_locations({b"h1": b"a 3", b"h2": b"b 4", b"h3": b"c -1"}, {"h1": "a", "h2": "z"})
    {'h1': 3}
    """
    found: dict[HostId, int] = {}
    for name, data in fields.items():
        location, host_id = _LOCATION.fullmatch(data), _host_id(name)
        if location is None or host_id is None:
            continue
        if lives.get(host_id) == location[1].decode():
            found[host_id] = int(location[2])
    hosts = [item for item in found.items() if not is_objects(item[0])]
    objects = [item for item in found.items() if is_objects(item[0])]
    places = [*hosts, *_most(OBJECTS_SENT_MAX, objects)]
    return dict(_most(HOSTS_SENT_MAX, places))


def worth_keeping(kv_at: Mapping[HostId, int]) -> dict[HostId, int]:
    """Of what a message says, as much as a correct sender sends: hosts, what they wrote to
    the object store, or `ANYWHERE`.

    >>> worth_keeping({HostId("h1"): 3, HostId("h2"): -1, HostId("h3"): 10**30, HostId("a b"): 1})
    {'h1': 3}
    """
    first = islice(kv_at.items(), HOSTS_SENT_MAX)
    return {
        host_id: num_blocks
        for host_id, num_blocks in first
        if 0 < num_blocks <= BLOCKS_MAX
        and (host_id == ANYWHERE or _host_id(host_id.encode(errors="replace")))
    }


def known_places(kv_at: Mapping[HostId, int]) -> dict[HostId, int]:
    """Of that, what is not `ANYWHERE`."""
    return {place: num_blocks for place, num_blocks in kv_at.items() if place != ANYWHERE}


def _most(num: int, located: list[tuple[HostId, int]]) -> list[tuple[HostId, int]]:
    return nlargest(num, located, key=lambda item: item[1])


def _host_id(name: bytes) -> HostId | None:
    try:
        place = name.decode()
        subject_token(place.removeprefix(OBJECTS_MARK))
        return HostId(place)
    except ValueError:  # also what is no text
        return None
