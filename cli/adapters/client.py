"""Adapters over the frontend's HTTP API."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from cli.base.runfile import running_deployment
from cli.chat.address import call, http_client
from cli.chat.events import error_text
from shared.adapters.files import TAKEN, check_names
from shared.adapters.record import check_adapter_name
from shared.adapters.source import PICKLE_FILE
from shared.errors import NotFound, SymphonyError

TIMEOUT_S = 600.0  # of an answer: the adapter is copied and checked meanwhile


class AdapterClient:
    """Raises SymphonyError for what the server refuses, PeerUnavailable when it is not there."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def add(
        self,
        name: str,
        folder: Path,
        *,
        base: str | None = None,
        tenant: str | None = None,
        shared: bool = False,
        replace: bool = False,
    ) -> dict[str, Any]:
        """Upload a folder's files; what they are registered as."""
        check_adapter_name(name)
        if not folder.is_dir():
            raise NotFound(f"{folder}: no such folder")
        present = [file for file in TAKEN if (folder / file).is_file()]
        check_names(present, has_pickle=(folder / PICKLE_FILE).exists())
        fields = {
            "base_model_name": base or "",
            "tenant": tenant or "",
            "shared": str(shared).lower(),
            "load_inplace": str(replace).lower(),
        }
        with ExitStack() as stack:
            try:
                files = [
                    ("files", (file, stack.enter_context((folder / file).open("rb"))))
                    for file in present
                ]
            except OSError as error:
                raise SymphonyError(f"{error.filename}: {error.strerror}") from None
            return self._call("PUT", _path_of(name), data=fields, files=files)

    def all(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """What there is, by name."""
        data = self._call("GET", "/v1/adapters", params=_query(tenant=tenant))["data"]
        return list(data)

    def show(self, name: str, tenant: str | None = None) -> dict[str, Any]:
        """One of them."""
        return self._call("GET", _path_of(name), params=_query(tenant=tenant))

    def remove(self, name: str, tenant: str | None = None, *, shared: bool = False) -> None:
        """Have it forgotten; turns that run on it end on it."""
        params = _query(tenant=tenant, shared="true" if shared else None)
        self._call("DELETE", _path_of(name), params=params)

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = call(self._client, method, path, timeout=TIMEOUT_S, **options)
        if not response.is_success:
            raise SymphonyError(error_text(response.content))
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise SymphonyError("what answers is no frontend of ours")
        return answer


@contextmanager
def client_of(url: str | None, api_key: str, data_dir: Path) -> Iterator[AdapterClient]:
    """A client of the frontend at `url`, or else of the deployment that runs on a data folder.

    Raises:
        NotFound: none does.
        InvalidRequest: `url` is no http(s) address.
    """
    cert_file = None
    if url is None:
        deployment = running_deployment(data_dir.expanduser().resolve())
        url, cert_file = deployment.url, deployment.http_cert_file
    with http_client(url, api_key, cert_file) as client:
        yield AdapterClient(client)


def _query(**fields: str | None) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value is not None}


def _path_of(name: str) -> str:
    # Dots too: a client takes the names "." and ".." for steps of the path.
    return "/v1/adapters/" + quote(name, safe="/").replace(".", "%2E")
