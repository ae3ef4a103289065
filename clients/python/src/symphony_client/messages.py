"""What is said to a deployment and what it answers.

Answers are read leniently: a later server may say more, which is left out, and may know states that
are not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

from symphony_client.errors import BadAnswer

T = TypeVar("T")

LIVE = ("expected", "placed")  # states in which a turn is still awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """A hint that a session's next turn is coming. What is None is left to the server.

    Attributes:
        model: which model the turn will ask; None: the session's last.
        expected_arrival: seconds from now; None: unknown.
        agent, workflow_id: whose turn it will be, in which run of agents.
        ordered: this sender's advisories come in the order of their turns.
        priority: 0 to 9; higher goes first.
        ttl_ms: how long the turn is expected.
    """

    session_id: str
    model: str | None = None
    expected_arrival: float | None = None
    agent: str | None = None
    workflow_id: str | None = None
    ordered: bool | None = None
    priority: int | None = None
    ttl_ms: int | None = None

    def body(self) -> dict[str, object]:
        """As it is sent."""
        named = {
            "session_id": self.session_id, "model_id": self.model,
            "expected_arrival": self.expected_arrival, "agent": self.agent,
            "workflow_id": self.workflow_id, "ordered": self.ordered, "priority": self.priority,
            "ttl_ms": self.ttl_ms,
        }  # fmt: skip
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisoryState:
    """Where an advisory stands.

    Attributes:
        state: ``expected``, ``placed``, ``used``, ``late``, ``expired``, ``overtaken`` or
            ``invalidated``.
        worker_id: which is reserved for the turn, if any.
        num_merged: how many other advisories of this turn it took in.
        created, expires: seconds since the epoch.
        chance: that the turn comes, as earlier ones teach.
        acted_on: whether anything is prefetched; if not, `why` says why.
    """

    session_id: str
    state: str
    tenant: str = ""
    model_id: str | None = None
    worker_id: str | None = None
    priority: int = 1
    num_merged: int = 0
    created: float = 0.0
    expires: float = 0.0
    agent: str = ""
    workflow_id: str = ""
    chance: float = 1.0
    acted_on: bool = True
    why: str = ""

    @property
    def is_live(self) -> bool:
        """The turn is still awaited."""
        return self.state in LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What is remembered of a session. `last_used` and `expires` are seconds since the epoch."""

    id: str
    model: str | None = None
    num_tokens: int = 0
    num_blocks: int = 0
    num_turns: int = 0
    last_used: float = 0.0
    expires: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A session that is no more. `num_blocks` of KV went with it."""

    id: str
    deleted: bool
    num_blocks: int = 0


def read_as(kind: type[T], document: Mapping[str, Any]) -> T:
    """A message from its JSON.

    Raises:
        BadAnswer: a field is missing, or is of another type than it should be.
    """
    hints = get_type_hints(kind)
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    given = {name: value for name, value in document.items() if name in known}
    for name, value in given.items():
        wanted = hints[name]
        is_whole = wanted is float and type(value) is int
        if not (is_whole or isinstance(value, wanted)):
            raise BadAnswer(f"{name}: {value!r} is no {kind.__name__}'s")
    try:
        return kind(**given)
    except TypeError as error:
        raise BadAnswer(f"no {kind.__name__}: {error}") from None
