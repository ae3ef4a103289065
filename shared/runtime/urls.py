"""Addresses of NATS, Redis and other hosts: what can be one, and how one is shown without its
password.
"""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

NATS_SCHEMES = ("nats", "tls")
REDIS_SCHEMES = ("redis", "rediss", "unix")
HTTP_SCHEMES = ("http", "https")
PORT_MAX = 65_535
LABEL_MAX = 63  # of a name, between two dots
HIDDEN = "***"

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})")
_USERINFO = re.compile(r"^([^/@]*//)?.*@")
_SECRET_QUERY = re.compile(r"([?&][^=&]*(?:pass|token|secret)[^=&]*=)[^&]*", re.IGNORECASE)


def hide_password(url: str) -> str:
    """The url with `***` for who connects and how they prove it; fit for what people read.

    >>> hide_password("redis://me:secret@host:6379/0")
    'redis://***@host:6379/0'
    """
    hidden = _USERINFO.sub(lambda match: f"{match[1] or ''}{HIDDEN}@", url)
    return _SECRET_QUERY.sub(rf"\1{HIDDEN}", hidden)


def check_nats_url(url: str) -> str:
    """`url`, which a connection can be tried with.

    Raises:
        ValueError: it cannot; says why, and quotes nothing of it.
    """
    _check(url, NATS_SCHEMES, "nats://HOST:PORT")
    return url


def check_redis_url(url: str) -> str:
    """`url`, which a connection can be tried with.

    Raises:
        ValueError: it cannot; says why, and quotes nothing of it.
    """
    path = _check(url, REDIS_SCHEMES, "redis://HOST:PORT/0")
    if not url.startswith("unix:") and path not in ("", "/") and not path[1:].isdecimal():
        raise ValueError("the database behind the address is no number")
    return url


def check_http_url(url: str) -> str:
    """`url`, which a connection can be tried with.

    Raises:
        ValueError: it cannot; says why, and quotes nothing of it.
    """
    _check(url, HTTP_SCHEMES, "http://HOST:PORT")
    return url


def split_address(text: str) -> tuple[str, int]:
    """Host and port; port 0 is one.

    Raises:
        ValueError: it is written otherwise.

    >>> split_address("[::1]:4500")
    ('::1', 4500)
    >>> split_address("a..b:1")
    Traceback (most recent call last):
    ...
    ValueError: no address: write it as HOST:PORT, the port from 0 to 65535
    """
    found = _ADDRESS.fullmatch(text)
    labels = (found[2] or "x").split(".") if found is not None else []
    is_name = all(0 < len(label) <= LABEL_MAX for label in labels)
    if found is None or not is_name or (port := int(found[3])) > PORT_MAX:
        raise ValueError(f"no address: write it as HOST:PORT, the port from 0 to {PORT_MAX}")
    return found[1] or found[2], port


def join_address(host: str, port: int) -> str:
    """Inverse of `split_address`.

    >>> join_address("::1", 4500), join_address("h", 0)
    ('[::1]:4500', 'h:0')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check(url: str, schemes: Sequence[str], example: str) -> str:
    """The path of an address. Never quotes it: a misplaced password may be in any of its parts."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"no address: write it as {example}") from None
    if parts.scheme not in schemes:
        raise ValueError(f"does not begin with {schemes[0]}://: write it as {example}")
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("names no socket")
        return parts.path
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"the port is no number from 1 to {PORT_MAX}") from None
    if port == 0:
        raise ValueError(f"the port is no number from 1 to {PORT_MAX}")
    if not parts.hostname or any(character.isspace() for character in parts.netloc):
        raise ValueError(f"names no host: write it as {example}")
    return parts.path
