"""The frontend's HTTP API, as far as a chat needs it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from cli.chat.address import call, where_of
from cli.chat.events import Reply, error_text, pieces
from cli.chat.sanitise import one_line
from shared.errors import InvalidRequest, NotFound, PeerUnavailable, SymphonyError

GENERATE = "generate"
NUM_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An entry of ``/v1/models``."""

    model_id: str
    task: str

    @property
    def can_chat(self) -> bool:
        """Whether it writes text."""
        return self.task == GENERATE


def first_that_chats(served: Sequence[ServedModel]) -> str:
    """The model of a user who named none.

    Raises:
        NotFound: no served model can chat.
    """
    for model in served:
        if model.can_chat:
            return model.model_id
    if not served:
        raise NotFound("no model is served yet")
    names = _named([f"{model.model_id} ({model.task})" for model in served])
    raise NotFound(f"none of the served models can chat: {names}")


def require_chat(served: Sequence[ServedModel], wanted: str) -> str:
    """`wanted`, if one can chat with it.

    Raises:
        NotFound: it is not served.
        InvalidRequest: it has another task.
    """
    tasks = {model.model_id: model.task for model in served}
    if tasks.get(wanted) == GENERATE:
        return wanted
    names = [model.model_id for model in served if model.can_chat]
    instead = f"--model can be one of {_named(names)}" if names else "nothing that is served can"
    if wanted in tasks:
        task = one_line(tasks[wanted])
        raise InvalidRequest(f"{one_line(wanted)} cannot chat, its task is {task}; {instead}")
    raise NotFound(f"{one_line(wanted)} cannot chat, it is not served; {instead}")


def _named(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > NUM_NAMED_MAX else ""
    return ", ".join(one_line(name, 100) for name in names[:NUM_NAMED_MAX]) + more


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
