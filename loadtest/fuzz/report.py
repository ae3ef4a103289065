"""What a mode found."""

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

ERROR_FIELDS = {"message", "type", "param", "code"}


@dataclass(slots=True)
class Report:
    """Attributes:
    counts: how many of what were tried, and how they ended.
    worst: the worst seen of each figure that has a limit, with its unit in its name.
    notes: what else is worth reading, by name.
    violations: a sentence for each guarantee that did not hold, each once; none: all held.
    """

    counts: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def count(self, what: str, num: int = 1) -> None:
        """So many more of this."""
        self.counts[what] = self.counts.get(what, 0) + num

    def see(self, figure: str, value: float) -> None:
        """One more measurement of a figure."""
        self.worst[figure] = round(max(self.worst.get(figure, 0.0), value), 3)

    def expect(self, holds: bool, otherwise: str) -> None:
        """A guarantee, and what is to be said if it does not hold."""
        if not holds and otherwise not in self.violations:
            self.violations.append(otherwise)

    def as_dict(self) -> dict[str, Any]:
        """What machines read."""
        return asdict(self)


def is_error(body: bytes) -> bool:
    """Whether it is an error in OpenAI's shape.

    >>> is_error(b'{"error": {"message": "", "type": "", "param": null, "code": null}}')
    True
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    error = answer.get("error") if isinstance(answer, dict) else None
    return isinstance(error, dict) and error.keys() == ERROR_FIELDS
