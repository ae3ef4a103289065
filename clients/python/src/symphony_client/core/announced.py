"""Which turns were announced and have not come, and whether it is worth saying more about one.

An advisory costs its sender something, and the deployment keeps the earlier arrival of two for the
same
turn: so a later arrival is said only when the advisory would end before it.
"""

from collections import OrderedDict
from dataclasses import dataclass

SLACK_S = 30.0  # the deployment awaits a turn for so long after its arrival,
UNSAID_S = 60.0  # or after the hint, if that says nothing of when
MARGIN_S = 0.5  # sooner by less is not worth saying again
MARGIN_SHARE = 0.2  # nor by a smaller share of what is left
SESSIONS_MAX = 4096


@dataclass(frozen=True, slots=True)
class _Said:
    arrives_at_s: float | None
    ends_at_s: float


class Announced:
    """By session. The time is an argument. Bounded: the oldest are forgotten."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def __len__(self) -> int:
        return len(self._said)

    def say(
        self,
        session_id: str,
        expected_arrival: float | None,
        now_s: float,
        *,
        is_waiting: bool = False,
    ) -> bool:
        """A turn is expected so; whether to send it, and then it counts as sent.

        Args:
            is_waiting: what was said last has not gone: it can be replaced for nothing.
        """
        arrives_at_s = None if expected_arrival is None else now_s + expected_arrival
        said = self._said.get(session_id) if self.is_said(session_id, now_s) else None
        if said is not None and not is_waiting and not _is_news(said, arrives_at_s, now_s):
            return False
        ends_at_s = now_s + UNSAID_S if arrives_at_s is None else arrives_at_s + SLACK_S
        self._said.pop(session_id, None)
        self._said[session_id] = _Said(arrives_at_s, ends_at_s)
        if len(self._said) > self._sessions_max:
            self._said.popitem(last=False)
        return True

    def is_said(self, session_id: str, now_s: float) -> bool:
        """Its turn is awaited."""
        said = self._said.get(session_id)
        return said is not None and now_s < said.ends_at_s

    def forget(self, session_id: str) -> bool:
        """Its turn is here, or will not come; whether it was awaited."""
        return self._said.pop(session_id, None) is not None


def _is_news(said: _Said, arrives_at_s: float | None, now_s: float) -> bool:
    if arrives_at_s is None:
        return False
    if said.arrives_at_s is None:
        return arrives_at_s > said.ends_at_s
    sooner_s = said.arrives_at_s - arrives_at_s
    left_s = said.arrives_at_s - now_s
    return sooner_s > max(MARGIN_S, MARGIN_SHARE * left_s) or arrives_at_s > said.ends_at_s
