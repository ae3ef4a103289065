"""Questions to a deployment and how its answers are read, whatever carries them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from symphony_client.errors import BadAnswer, InvalidRequest, SymphonyError, Unsupported, of_status
from symphony_client.messages import Advisory, AdvisoryState, Forgotten, Session, read_as

T = TypeVar("T")

ID_CHARS_MAX = 256
SHOWN_CHARS_MAX = 200
NATS_ERROR_HEADER = "Symphony-Error"
OK, REDIRECTED = 200, 300


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One question.

    Attributes:
        method, path: over HTTP.
        subject: over NATS; empty: it cannot be asked there.
        body: of both; over HTTP only where `has_body`, else the path says it.
        read: the answer's meaning.
    """

    method: str
    path: str
    subject: str
    body: Mapping[str, object]
    has_body: bool
    read: Callable[[Mapping[str, Any]], T]


def advise(advisory: Advisory) -> Call[AdvisoryState]:
    """Say that a turn is coming."""
    _check_id(advisory.session_id)
    return Call(
        "POST", "/v1/advisories", "symphony.advisory.submit", advisory.body(), True, _advisory_state
    )


def advisory(session_id: str) -> Call[AdvisoryState]:
    """How a session's advisory stands."""
    key = {"session_id": session_id}
    path = _path("advisories", session_id)
    return Call("GET", path, "symphony.advisory.get", key, False, _advisory_state)


def invalidate(session_id: str) -> Call[AdvisoryState]:
    """The turn is not coming after all."""
    key = {"session_id": session_id}
    path = _path("advisories", session_id)
    return Call("DELETE", path, "symphony.advisory.invalidate", key, False, _advisory_state)


def session(session_id: str) -> Call[Session]:
    """What is remembered of a session."""
    path = _path("sessions", session_id)
    return Call("GET", path, "", {}, False, partial(read_as, Session))


def forget(session_id: str) -> Call[Forgotten]:
    """Forget a session and its KV."""
    path = _path("sessions", session_id)
    return Call("DELETE", path, "", {}, False, partial(read_as, Forgotten))


def read_http(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> T:
    """What an answer over HTTP says. `headers` are looked up in lower case.

    Raises:
        SymphonyError: the server refused, or it is no answer to this question.
    """
    document = _document(content)
    if OK <= status < REDIRECTED:
        return call.read(_checked(document, content))
    found = document.get("error") if document else None
    error = found if isinstance(found, dict) else {}
    raise _refusal(error, status, _seconds(headers.get("retry-after")), content)


def subject_of(call: Call[T]) -> str:
    """Where it is asked over NATS.

    Raises:
        Unsupported: nowhere.
    """
    if not call.subject:
        raise Unsupported(f"{call.method} {call.path}: not over NATS, ask it over HTTP")
    return call.subject


def read_nats(call: Call[T], headers: Mapping[str, str] | None, content: bytes) -> T:
    """What an answer over NATS says.

    Raises:
        SymphonyError: the server refused, or it is no answer to this question.
    """
    document = _checked(_document(content), content)
    if not headers or NATS_ERROR_HEADER not in headers:
        return call.read(document)
    status = document.get("http_status")
    retry_after_s = document.get("retry_after_s")
    seconds = float(retry_after_s) if isinstance(retry_after_s, int | float) else None
    raise _refusal(document, status if isinstance(status, int) else 500, seconds, content)


def _path(collection: str, session_id: str) -> str:
    """A session may be called anything, dots alone too, which a path would take for a folder."""
    _check_id(session_id)
    quoted = quote(session_id, safe="")
    if set(quoted) == {"."}:
        quoted = quoted.replace(".", "%2E")
    return f"/v1/{collection}/{quoted}"


def _check_id(session_id: str) -> None:
    if not 1 <= len(session_id) <= ID_CHARS_MAX:
        raise InvalidRequest(
            f"session_id: give 1 to {ID_CHARS_MAX} characters, not {len(session_id)}",
            param="session_id",
        )


def _advisory_state(document: Mapping[str, Any]) -> AdvisoryState:
    return read_as(AdvisoryState, document)


def _document(content: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(content)
    except ValueError:  # also of bytes that are no UTF-8
        return None
    return document if isinstance(document, dict) else None


def _checked(document: dict[str, Any] | None, content: bytes) -> dict[str, Any]:
    if document is None:
        raise BadAnswer(f"no JSON object, but {_shown(content)}")
    return document


def _refusal(
    error: Mapping[str, Any], status: int, retry_after_s: float | None, content: bytes
) -> SymphonyError:
    message, code, param = error.get("message"), error.get("code"), error.get("param")
    return of_status(status)(
        str(message) if message else f"status {status}: {_shown(content)}",
        code=code if isinstance(code, str) else "",
        param=param if isinstance(param, str) else None,
        status=status,
        retry_after_s=retry_after_s,
    )


def _shown(content: bytes) -> str:
    return repr(content[:SHOWN_CHARS_MAX].decode(errors="replace"))


def _seconds(value: str | None) -> float | None:
    """Of a header that may also hold a date, which our servers do not send.

    >>> _seconds("2.5"), _seconds("tomorrow"), _seconds("nan"), _seconds(None)
    (2.5, None, None, None)
    """
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
