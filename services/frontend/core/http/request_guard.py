"""Which names a request may be addressed to, and which web pages it may come from.

Any page can make its visitor's browser send requests to this machine. There are two ways. A name of
the page's own may suddenly mean 127.0.0.1 (DNS rebinding): the browser takes the frontend for the
page's own server, and lets the page read the answers. ``Host`` gives that away. Or the page posts
to our address without seeing the answer: ``Origin`` shows that, and a body that a plain form can
send is no JSON by its type.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

HTTP_PORTS = {"http": 80, "https": 443}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host, lower case, without brackets; and a port, None if none is written."""

    host: str
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGuard:
    """Which requests are let in.

    Attributes:
        address: where the frontend listens.
        allowed: names by which it is reached besides its own; without a port: on any.
        origins: of pages that may send requests, as browsers write them; ``*``: all.
        asks_for_keys: then a request proves by its key that no strange page has made it.
    """

    address: str
    allowed: frozenset[HostPort] = frozenset()
    origins: frozenset[str] = frozenset()
    asks_for_keys: bool = False

    def admits_host(self, host: str | None) -> bool:
        """Whether a request with this ``Host`` is let in.

        Without one it is no browser's, so it does no harm. Beyond loopback, addresses and names
        without a dot are fine too: an address cannot be made to mean another, and what containers
        and local networks call a machine is no name of a strange page's.
        """
        if self.asks_for_keys or host is None:
            return True
        place = parse_host(host)
        if place is None:
            return False
        if place.host == self.address or _is_loopback(place.host) or self._allows(place):
            return True
        is_local_name = "." not in place.host or _address(place.host) is not None
        return is_local_name and not _is_loopback(self.address)

    def admits_page(self, method: str, host: str | None, origin: str | None, site: str) -> bool:
        """Whether the page that a request comes from is our own or allowed, or it comes from none.

        Args:
            origin: the ``Origin``, which browsers send with all but plain reads.
            site: ``Sec-Fetch-Site``, empty if there is none.
        """
        if origin is None:
            return site != "cross-site" or method in SAFE_METHODS
        if not self.origins.isdisjoint({origin, "*"}):
            return True
        scheme, separator, authority = origin.partition("://")
        page = parse_host(authority) if separator else None
        if page is None:  # "null", of a page that hides where it is from
            return False
        if self._allows(page):
            return True
        # With TLS ended by a proxy the page's scheme is another one than ours.
        default = HTTP_PORTS.get(scheme)
        ours = parse_host(host or "")
        if default is None or ours is None or ours.host != page.host:
            return False
        return (page.port or default) == (ours.port or default)

    def _allows(self, place: HostPort) -> bool:
        return place in self.allowed or HostPort(place.host) in self.allowed


@lru_cache(256)  # of the same few hosts, request after request
def parse_host(text: str) -> HostPort | None:
    """A ``Host`` header's value; None if it is none.

    >>> parse_host("Chat.Example.org:8080"), parse_host("[::1]")
    (HostPort(host='chat.example.org', port=8080), HostPort(host='::1', port=None))
    >>> parse_host("user@host") is parse_host("host/path") is None
    True
    """
    try:
        parts = urlsplit(f"//{text}")
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        return None
    if parts.netloc != text or "@" in text or text.endswith(":"):
        return None
    if _NAME.fullmatch(host) is None and _address(host) is None:
        return None
    return HostPort(host, port)


def is_json(content_type: str) -> bool:
    """Whether a ``Content-Type`` says that a body is JSON.

    >>> is_json("application/json; charset=utf-8"), is_json("application/problem+json")
    (True, True)
    >>> is_json("text/plain; application/json")
    False
    """
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
