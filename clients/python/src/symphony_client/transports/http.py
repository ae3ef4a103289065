"""Over HTTP, by httpx."""

import asyncio
import json
import ssl
from typing import TypeVar

import httpx

from symphony_client.core.calls import Call, read_http
from symphony_client.errors import Unreachable
from symphony_client.settings import Settings

T = TypeVar("T")
Verify = bool | ssl.SSLContext


def _request(client: httpx.Client | httpx.AsyncClient, call: Call[T]) -> httpx.Request:
    if not call.has_body:
        return client.build_request(call.method, call.path)
    return client.build_request(
        call.method,
        call.path,
        content=json.dumps(call.body).encode(),
        headers={"Content-Type": "application/json"},
    )


def _read(call: Call[T], answer: httpx.Response) -> T:
    return read_http(call, answer.status_code, answer.headers, answer.content)


def _unreachable(settings: Settings, error: Exception) -> Unreachable:
    why = str(error) or type(error).__name__
    return Unreachable(f"no answer from {settings.base_url}: {why}")


class HttpTransport:
    """For threads; any number of them may share it.

    Args:
        verify: of certificates: True, False, or a context that knows the deployment's.
    """

    def __init__(self, settings: Settings | None = None, *, verify: Verify = True) -> None:
        self.settings = settings or Settings.read()
        self._verify = verify
        self._client = httpx.Client(
            base_url=self.settings.base_url,
            headers=self.settings.headers(),
            timeout=self.settings.timeout_s,
            verify=verify,
        )

    def send(self, call: Call[T]) -> T:
        """See `Transport`. The timeout is of each wait, as httpx has it: a server that answers byte
        by byte may take longer.
        """
        try:
            answer = self._client.send(_request(self._client, call))
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: it is closed
            raise _unreachable(self.settings, error) from error
        return _read(call, answer)

    def close(self) -> None:
        """See `Transport`."""
        self._client.close()

    def for_hints(self) -> "AsyncHttpTransport":
        """See `Transport`."""
        return AsyncHttpTransport(self.settings, verify=self._verify)


class AsyncHttpTransport:
    """For asyncio.

    Args:
        verify: as of `HttpTransport`.
    """

    def __init__(self, settings: Settings | None = None, *, verify: Verify = True) -> None:
        self.settings = settings or Settings.read()
        self._verify = verify
        self._client = httpx.AsyncClient(
            base_url=self.settings.base_url,
            headers=self.settings.headers(),
            timeout=self.settings.timeout_s,
            verify=verify,
        )

    async def send(self, call: Call[T]) -> T:
        """See `AsyncTransport`. The timeout is of the whole."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                answer = await self._client.send(_request(self._client, call))
        except (httpx.HTTPError, TimeoutError, RuntimeError) as error:
            raise _unreachable(self.settings, error) from error
        return _read(call, answer)

    async def close(self) -> None:
        """See `AsyncTransport`."""
        await self._client.aclose()

    def for_hints(self) -> "AsyncHttpTransport":
        """See `AsyncTransport`."""
        return AsyncHttpTransport(self.settings, verify=self._verify)
