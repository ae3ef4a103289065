"""Where the frontend is, as a user may write it."""

from pathlib import Path
from typing import Any

import httpx

from shared.errors import InvalidRequest, PeerUnavailable
from shared.runtime.access import trusting_only

API_PATH = "/v1"
PORT_MAX = 65535
CONNECT_TIMEOUT_S = 5.0


def base_url(url: str) -> str:
    """The address that paths such as ``/v1/models`` are appended to.

    Raises:
        InvalidRequest: it is no http(s) address.

    >>> base_url("http://server:8080/v1/")
    'http://server:8080'
    """
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"--url {url}: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise InvalidRequest(f"--url {url}: give an address such as http://127.0.0.1:8080")
    if (parsed.port or 0) > PORT_MAX:
        raise InvalidRequest(f"--url {url}: no port is above {PORT_MAX}")
    if parsed.query or parsed.fragment:
        raise InvalidRequest(f"--url {url}: give an address without ? and #")
    path = parsed.path.rstrip("/").removesuffix(API_PATH).rstrip("/")
    return str(parsed.copy_with(path=path or "/")).rstrip("/")


def http_client(url: str, api_key: str, cert_file: Path | None = None) -> httpx.Client:
    """A client of the frontend there. As `client_options`."""
    return httpx.Client(**client_options(url, api_key, cert_file))


def call(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    """One request, of `httpx.Client.request`.

    Raises:
        PeerUnavailable: no answer came.
    """
    try:
        return client.request(method, path, **options)
    except httpx.HTTPError as error:
        where, why = where_of(client), str(error) or type(error).__name__
        raise PeerUnavailable(f"{where} cannot be reached: {why}") from None


def where_of(client: httpx.Client) -> str:
    """Its server's address."""
    return str(client.base_url).rstrip("/")


def client_options(url: str, api_key: str, cert_file: Path | None = None) -> dict[str, Any]:
    """What a client of the frontend there is made with.

    Args:
        cert_file: the server's own certificate; None: what the machine trusts.

    Raises:
        InvalidRequest: `url` is no http(s) address.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    verify = True if cert_file is None else trusting_only(cert_file)
    return {"base_url": base_url(url), "headers": headers, "timeout": timeout, "verify": verify}
