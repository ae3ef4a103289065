"""What a user is going to do, whatever serves it: the form that all workloads have.

A script is one person's or one workflow's: turns of sessions, each with what it waits for. How long
turns take is not in it, so an answer that comes later makes everything behind it later.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Some text: its first `num_tokens` tokens. The same name is the same text everywhere."""

    name: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """When a turn is announced.

    Attributes:
        lead_ns: so long before the turn; of a turn that waits less, when its wait begins.
        at_start_of: or, if not None, when this turn of the script starts, and with what was learned
            of how long that takes.
        expected_in_ns: when the turn is said to come, from the hint on; None: it is not said.
    """

    lead_ns: int = 0
    at_start_of: int | None = None
    expected_in_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """One turn. Its prompt is all messages of its session so far, and `parts`.

    Attributes:
        session: within the script.
        after: turns of the script, by number, that have ended before it begins to wait.
        wait_ns: reading, typing, a tool; for a turn after none, from the beginning of the script.
        parts: new text. A session that begins with a part that others begin with shares its KV.
        num_output: tokens of the answer; at least 1.
        hint: how it is announced; None: not at all.
        agent: whose turn it is; empty: a person's.
        priority: 0 normal, above: urgent, below: it may wait.
    """

    session: str
    parts: tuple[Part, ...]
    num_output: int
    after: tuple[int, ...] = ()
    wait_ns: int = 0
    hint: Hint | None = None
    agent: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Attributes:
    name: unique.
    begins_ns: from the beginning of the workload.
    """

    name: str
    turns: tuple[ScriptedTurn, ...]
    begins_ns: int = 0
    tenant: str = "default"


# Scripts of `num_users` people that ask for turns during `duration_ns`, the same for the same seed.
Workload = Callable[[int, int, int], list[Script]]
