"""Goes through a script as its turns end: what is to be done next, and when.

Of a script only the order and the waits are fixed; how long answers take is the server's doing.
Instants are seconds from the script's own beginning.
"""

from collections import defaultdict
from dataclasses import dataclass

from loadtest.workloads.script import Script, ScriptedTurn


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """A turn is to be announced or sent.

    Attributes:
        turn: its number in the script.
        is_sent: else it is announced; of one instant, announcements come first.
        expected_in_s: of an announcement; None: it is not said.
    """

    at_s: float
    turn: int
    is_sent: bool
    expected_in_s: float | None = None


class Following:
    """Args:
    faster: divides all waits.
    """

    def __init__(self, script: Script, faster: float) -> None:
        self._turns = script.turns
        self._faster = faster
        self._num_missing = [len(set(turn.after)) for turn in script.turns]
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        self._announced_by: defaultdict[int, list[int]] = defaultdict(list)
        self.num_left = len(script.turns)
        for number, turn in enumerate(script.turns):
            for before in set(turn.after):
                self._followers[before].append(number)
            if turn.hint is not None and turn.hint.at_start_of is not None:
                self._announced_by[turn.hint.at_start_of].append(number)

    def begin(self) -> list[Due]:
        """What waits for nothing."""
        return [
            due
            for number, turn in enumerate(self._turns)
            if not turn.after
            for due in self._due(number, turn, 0.0)
        ]

    def on_start(self, number: int, at_s: float) -> list[Due]:
        """A turn was sent: those that are announced by that."""
        return [
            Due(at_s, each, False, self._expected_in_s(self._turns[each]))
            for each in self._announced_by[number]
        ]

    def on_end(self, number: int, at_s: float) -> list[Due]:
        """A turn has ended, well or not: what waited for it alone."""
        self.num_left -= 1
        found: list[Due] = []
        for each in self._followers[number]:
            self._num_missing[each] -= 1
            if not self._num_missing[each]:
                found += self._due(each, self._turns[each], at_s)
        return found

    def _due(self, number: int, turn: ScriptedTurn, from_s: float) -> list[Due]:
        wait_s = turn.wait_ns / 1e9 / self._faster
        due = [Due(from_s + wait_s, number, True)]
        if turn.hint is not None and turn.hint.at_start_of is None:
            lead_s = min(turn.hint.lead_ns / 1e9 / self._faster, wait_s)
            expected_in_s = self._expected_in_s(turn)
            due.insert(0, Due(from_s + wait_s - lead_s, number, False, expected_in_s))
        return due

    def _expected_in_s(self, turn: ScriptedTurn) -> float | None:
        if turn.hint is None or turn.hint.expected_in_ns is None:
            return None
        return turn.hint.expected_in_ns / 1e9 / self._faster
