"""Where the deployment is, and the key to it: from arguments, else from the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from symphony_client.errors import InvalidRequest

BASE_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Attributes:
    base_url: of the deployment, without ``/v1``.
    api_key: None where none is needed.
    timeout_s: how long a question may take, connecting included.
    """

    base_url: str = BASE_URL
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = TIMEOUT_S

    @classmethod
    def read(
        cls,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """What is given, else ``SYMPHONY_BASE_URL`` and ``SYMPHONY_API_KEY``, else a deployment on
        this machine that asks for no key. The URL may be the one that OpenAI's client is given,
        which ends in ``/v1``.

        Raises:
            InvalidRequest: the URL is none of HTTP, or the timeout is not positive.
        """
        given = base_url or environment.get("SYMPHONY_BASE_URL") or BASE_URL
        url = given.rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"base_url {given!r}: give http://... or https://...")
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s {timeout_s!r}: give more than 0")
        return cls(url, api_key or environment.get("SYMPHONY_API_KEY") or None, timeout_s)

    def headers(self) -> dict[str, str]:
        """What goes with every request."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Accept": "application/json", **key}
