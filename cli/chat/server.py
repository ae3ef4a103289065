"""The frontend's HTTP API, as far as a chat needs it."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx

from cli.chat.address import call, where_of
from cli.chat.events import Reply, error_text, pieces
from cli.chat.models import GENERATE, ServedModel
from shared.errors import PeerUnavailable, SymphonyError

ANSWER_TIMEOUT_S = 15.0
ADVISORY_TIMEOUT_S = 2.0


class Server:
    """Raises SymphonyError for what the server refuses, PeerUnavailable when it is not there."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def models(self) -> list[ServedModel]:
        """What is served; an entry without a task, as other servers send them, can chat."""
        response = self._call("GET", "/v1/models")
        if response.status_code != httpx.codes.OK:
            raise SymphonyError(error_text(response.content))
        try:
            data = response.json()["data"]
            return [
                ServedModel(str(each["id"]), str(each.get("task") or GENERATE)) for each in data
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SymphonyError(
                f"{where_of(self._client)} does not answer like an OpenAI server"
            ) from None

    def knows_session(self, session_id: str) -> bool:
        """Whether it remembers the session; a server that has no sessions does not."""
        return self._call("GET", _path_of(session_id)).status_code == httpx.codes.OK

    def forget_session(self, session_id: str) -> None:
        """Have the session and its KV deleted; one that is unknown is no error."""
        response = self._call("DELETE", _path_of(session_id))
        if not response.is_success and response.status_code != httpx.codes.NOT_FOUND:
            raise SymphonyError(error_text(response.content))

    def announce(self, session_id: str, model: str) -> None:
        """Send the advisory of a coming turn, in the background; nothing depends on it."""
        body = {"session_id": session_id, "model_id": model}

        def send() -> None:
            # A hint may be lost, and the client may be closed meanwhile.
            with suppress(httpx.HTTPError, RuntimeError):
                self._client.post("/v1/advisories", json=body, timeout=ADVISORY_TIMEOUT_S)

        threading.Thread(target=send, daemon=True).start()

    def stream(self, body: dict[str, Any], reply: Reply) -> Iterator[str]:
        """Stream a completion piece by piece, and fill `reply`."""
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise SymphonyError(error_text(response.read()))
                yield from pieces(response.iter_bytes(), reply)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise PeerUnavailable(f"the stream broke off: {why}") from None

    def _call(self, method: str, path: str) -> httpx.Response:
        return call(self._client, method, path, timeout=ANSWER_TIMEOUT_S)


def _path_of(session_id: str) -> str:
    # Dots too: a client takes the ids "." and ".." for steps of the path.
    return "/v1/sessions/" + quote(session_id, safe="").replace(".", "%2E")
