"""The HTTP API as Locust's users call it: blocking, a few connections a client."""

import ssl
import time
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from loadtest.users.stream import Reply, message_of

CONNECT_S = 10.0
SILENCE_MAX_S = 600.0  # the longest wait for the next bytes of a stream
OK, ACCEPTED, NOT_FOUND, TOO_MANY = 200, 202, 404, 429
THROTTLED = "throttled"  # what becomes of a hint over the limit


class ApiError(Exception):
    """What the server said, with its status."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A turn that came to its end, and when it was sent and over, monotonic s."""

    reply: Reply
    sent_at: float
    ended_at: float


class Client:
    """Args:
    url: of the frontend, without `/v1`.
    cert: the certificate of a deployment's own TLS.
    """

    def __init__(self, url: str, api_key: str = "", cert: str = "") -> None:
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=headers,
            verify=_trusted(cert),
            trust_env=False,  # looks for proxies and passwords before each request
            timeout=httpx.Timeout(SILENCE_MAX_S, connect=CONNECT_S),
        )

    def models(self) -> list[dict[str, Any]]:
        """Those that generate, as `/v1/models` lists them."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/models")["data"]
        return [model for model in found if model.get("task", "generate") == "generate"]

    def num_tokens(self, model: str, text: str) -> int:
        """Of a text."""
        return int(self._call("POST", "/tokenize", {"model": model, "prompt": text})["count"])

    def hint(self, body: dict[str, Any]) -> str:
        """Send an advisory: its state, or `throttled`."""
        answer = self._request("POST", "/v1/advisories", body)
        if answer.status_code == TOO_MANY:
            return THROTTLED
        return str(_checked(answer)["state"])

    def take_back(self, session: str) -> None:
        """Delete a session's advisory; there may be none."""
        self.state_of(session, "DELETE")

    def state_of(self, session: str, method: str = "GET") -> str:
        """Of a session's advisory; `none`: it has none."""
        answer = self._request(method, f"/v1/advisories/{quote(session, safe='')}")
        return "none" if answer.status_code == NOT_FOUND else str(_checked(answer)["state"])

    def forget(self, session: str) -> None:
        """Delete a session and its KV."""
        self._call("DELETE", f"/v1/sessions/{quote(session, safe='')}")

    def turn(self, body: dict[str, Any]) -> Streamed:
        """Stream a chat to its end.

        Raises:
            ApiError: it was refused or broke; with what the server said.
        """
        reply = Reply()
        sent_at = time.monotonic()
        try:
            with self._http.stream(
                "POST", "/v1/chat/completions", content=orjson.dumps(body)
            ) as answer:
                if answer.status_code != OK:
                    answer.read()
                    _checked(answer)
                for data in answer.iter_raw():
                    reply.feed(data, time.monotonic())
        except httpx.HTTPError as error:
            raise ApiError(f"the connection failed: {type(error).__name__}") from error
        if reply.trouble or not reply.is_done:
            raise ApiError(reply.trouble or "the stream ended before its end")
        return Streamed(reply, sent_at, time.monotonic())

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return _checked(self._request(method, path, body))

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        try:
            return self._http.request(
                method, path, content=None if body is None else orjson.dumps(body)
            )
        except httpx.HTTPError as error:
            raise ApiError(f"{path}: {type(error).__name__}: {error}") from error


@cache
def _trusted(cert: str) -> ssl.SSLContext:
    """Made once for all users of a process: it takes as long as some turns."""
    return ssl.create_default_context(cafile=cert or None)


def _checked(answer: httpx.Response) -> Any:
    try:
        body = orjson.loads(answer.content)
    except ValueError:
        body = {}
    if answer.status_code not in (OK, ACCEPTED):
        error = body.get("error") if isinstance(body, dict) else ""
        said = "" if error == "" else message_of(error or answer.reason_phrase)
        raise ApiError(f"{answer.status_code} {said}")
    return body
