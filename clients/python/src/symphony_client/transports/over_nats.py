"""Over NATS, by nats-py: for those who are on the bus already. Advisories only."""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from symphony_client.core.calls import Call, read_nats, subject_of
from symphony_client.errors import InvalidRequest, Unreachable
from symphony_client.settings import TIMEOUT_S

if TYPE_CHECKING:
    from nats.aio.client import Client

T = TypeVar("T")


class NatsTransport:
    """For asyncio.

    Args:
        url: None: ``NATS_URL``.
        nkey_file: the tenant's seed, as in ``credentials/tenant-NAME.nk`` of a deployment; None:
            ``NATS_NKEY``, or none where NATS lets anybody in.
        timeout_s: how long a question may take, connecting included.

    Raises:
        InvalidRequest: it is not said where NATS is.
    """

    def __init__(
        self,
        url: str | None = None,
        nkey_file: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        found = url or environment.get("NATS_URL")
        if not found:
            raise InvalidRequest("url: say where NATS is, or set NATS_URL")
        self.url = found
        self._nkey_file = nkey_file or environment.get("NATS_NKEY")
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    async def send(self, call: Call[T]) -> T:
        """See `AsyncTransport`."""
        from nats.errors import Error

        subject = subject_of(call)
        try:
            async with asyncio.timeout(self._timeout_s):
                client = await self._connected()
                reply = await client.request(
                    subject, json.dumps(call.body).encode(), timeout=self._timeout_s
                )
        except (Error, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"no answer over NATS from {self.url}: {why}") from error
        return read_nats(call, reply.headers, reply.data)

    async def close(self) -> None:
        """See `AsyncTransport`."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def for_hints(self) -> "NatsTransport":
        """See `AsyncTransport`."""
        return NatsTransport(
            self.url, self._nkey_file, timeout_s=self._timeout_s, environment=os.environ
        )

    async def _connected(self) -> "Client":
        """The connection: one, however many ask at once."""
        import nats

        async with self._connecting:
            if self._is_closed:
                raise OSError("closed")
            if self._client is None or self._client.is_closed:
                self._client = await nats.connect(
                    self.url, nkeys_seed=self._nkey_file, allow_reconnect=True, error_cb=_ignore,
                )  # fmt: skip
            return self._client


async def _ignore(_error: Exception) -> None:
    """The caller gets the error; nats-py would log it as well."""
