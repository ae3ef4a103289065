"""``kv_hints``: what orchestrators of other servers say of KV in a request (vLLM's RFC 53421).

An envelope holds actions, each with a version of its own. Four of them mean something here:

- ``fetch``: a session's turn is coming. Of the request's own session it says nothing new: its turn
  is here, and brings up what it needs.
- ``retain``: the session's next turn comes within ``duration`` seconds.
- ``demote``, ``release``: it does not come.

What concerns the request's own session is done when its turn is over, the rest at once. Its own
session's KV also outlives this turn for as long as it is retained, if that is longer than it would,
and for a minute if it is released (`core.sessions.kv_expiry`). All other
actions are counted and ignored, and so is what payloads say of blocks, tokens and other servers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from services.frontend.prepare.requests import ActionName, Wish
from shared.errors import InvalidRequest
from shared.ids import SessionId

PROTOCOL = "0.1"
MAJOR = "1"
ACTIONS_MAX = 64
DIRECTIVES_MAX = 64  # of an action
NAME_CHARS_MAX = 512
SESSION_CHARS_MAX = 256
DURATION_S_MAX = 30 * 86_400.0  # as others take it; here a hint lives a day at most
ARRIVAL_S_MAX = 86_400.0
TTL_MS_MAX = 86_400_000
RETAIN_MS = 300_000

ACTIONS: tuple[ActionName, ...] = get_args(ActionName)
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]


class KvHintAction(BaseModel):
    """One action; `payload` is read only if its type and version are known."""

    model_config = ConfigDict(extra="ignore", strict=True)
    action_id: Name
    action_type: Name
    action_version: Name
    payload: dict[str, Any] = Field(default_factory=dict)

    @property
    def known(self) -> ActionName | None:
        """What it means here, if anything."""
        name = self.action_type.removeprefix("kv.")
        is_ours = self.action_version.partition(".")[0] == MAJOR
        return next((each for each in ACTIONS if each == name), None) if is_ours else None


class KvHints(BaseModel):
    """The envelope."""

    model_config = ConfigDict(extra="ignore", strict=True)
    protocol_version: Name
    message_id: Name
    actions: Annotated[list[KvHintAction], Field(max_length=ACTIONS_MAX, fail_fast=True)] = []


def wishes_of(hints: KvHints | None, own: SessionId | None) -> list[Wish]:
    """What an envelope asks for.

    Args:
        own: the session of its request.

    Raises:
        InvalidRequest: a payload that is read here has a wrong field; names it.
    """
    wishes = []
    for number, action in enumerate(hints.actions if hints is not None else ()):
        name = action.known
        if hints is None or hints.protocol_version != PROTOCOL or name is None:
            continue
        wish = _wish(name, _Payload(f"kv_hints.actions[{number}].payload", action.payload), own)
        if wish is not None:
            wishes.append(wish)
    return wishes


def _wish(name: ActionName, payload: "_Payload", own: SessionId | None) -> Wish | None:
    """None: there is nothing to do."""
    session_id = payload.session_id() or own
    duration_s, arrival = payload.duration_s(), payload.number("expected_arrival", ARRIVAL_S_MAX)
    ttl_ms = None if duration_s is None else min(max(int(duration_s * 1e3), 1), TTL_MS_MAX)
    is_given_up = payload.is_given_up()
    is_wanted = name == "fetch" or (name == "retain" and not is_given_up)
    is_own = session_id == own
    if session_id is None or (name == "fetch" and is_own):
        return None
    if name == "retain" and ttl_ms is None:
        ttl_ms = RETAIN_MS
    return Wish(
        action=name,
        session_id=session_id,
        is_own=is_own,
        is_wanted=is_wanted,
        expected_arrival=arrival if name == "fetch" else None,
        ttl_ms=ttl_ms if is_wanted else None,
        duration_s=(duration_s or 0.0) if name == "retain" and is_wanted else 0.0,
    )


def _is_within(value: object, most: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= most  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class _Payload:
    """Reads fields, and names those that are wrong."""

    name: str
    fields: Mapping[str, Any]

    def session_id(self) -> str | None:
        value = self.fields.get("session_id")
        if value is None:
            return None
        if not isinstance(value, str) or not 1 <= len(value) <= SESSION_CHARS_MAX:
            raise self._wrong("session_id", f"give 1 to {SESSION_CHARS_MAX} characters")
        return value

    def number(self, field: str, most: float) -> float | None:
        """A number from 0 to `most`."""
        value = self.fields.get(field)
        if value is None:
            return None
        if not _is_within(value, most):
            raise self._wrong(field, f"give a number from 0 to {most:g}")
        return float(value)

    def duration_s(self) -> float | None:
        """How long the session is wanted: its own ``duration``, or the longest of a directive."""
        own = self.number("duration", DURATION_S_MAX)
        given = self._directed("duration", DURATION_S_MAX)
        if own is not None:
            given.append(own)
        return max(given, default=None)

    def is_given_up(self) -> bool:
        """Whether all directives have priority 0, which is to let go."""
        priorities = self._directed("priority", 100)
        is_of_all = 0 < len(priorities) == len(self._directives())
        return is_of_all and not any(priorities)

    def _directed(self, field: str, most: float) -> list[float]:
        """A number from 0 to `most` of each directive that gives it."""
        given = []
        for index, directive in enumerate(self._directives()):
            value = directive.get(field)
            if value is None:
                continue
            if not _is_within(value, most):
                wrong = _Payload(f"{self.name}.directives[{index}]", directive)
                raise wrong._wrong(field, f"give a number from 0 to {most:g}")
            given.append(float(value))
        return given

    def _directives(self) -> list[Mapping[str, Any]]:
        value = self.fields.get("directives")
        if value is None:
            return []
        if isinstance(value, list) and len(value) > DIRECTIVES_MAX:
            raise self._wrong("directives", f"give at most {DIRECTIVES_MAX}")
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong("directives", "give a list of objects")
        return value

    def _wrong(self, field: str, hint: str) -> InvalidRequest:
        param = f"{self.name}.{field}"
        return InvalidRequest(f"{param}: {hint}", param)
