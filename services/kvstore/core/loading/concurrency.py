"""How many reads at a time a disk is given, or connections a peer: the least with which it gives
nearly all that it can.

Hill climbing: bytes over time at the present level and at a neighbour, in turns, so that what else
changes meanwhile changes both. It goes up for `GAIN` more, and down where at most `LOSS` is lost:
what is queued below delays what becomes more urgent.
"""

from collections.abc import Sequence
from enum import Enum

GAIN = 0.05
LOSS = 0.03
WINDOW_NS, WINDOW_PARTS = 40_000_000, 4  # of work, for one measurement, at the least
WINDOWS = 8  # of each of the two levels, unless the one that is tried is hopeless
HOPELESS = 0.75
RESTS_MIN, RESTS_MAX = 25, 1600  # windows between trials that changed nothing: 1 s to a minute
RESTS_REFUSED = 8  # times as many after what was refused


class _Phase(Enum):
    REST = 0
    UP = 1
    DOWN = -1


class Concurrency:
    """Args:
    levels: that may be chosen, growing.
    first: the level to begin with.
    """

    def __init__(self, levels: Sequence[int], first: int) -> None:
        self._levels = levels
        self._at = levels.index(first)
        self._num_rests = RESTS_MIN
        self._window_ns = self._num_parts = self._num_windows_left = 0
        self._is_trying = self._is_settling = False
        self._begin(_Phase.UP)

    @property
    def level(self) -> int:
        """How many there are to be now."""
        return self._levels[self._at + (self._phase.value if self._is_trying else 0)]

    def on_done(self, num_bytes: int, duration_ns: int) -> None:
        """In so long a time so many bytes came, and there was more to do than that."""
        if duration_ns <= 0:
            return
        if self._is_settling:  # what came was asked for at the level before
            self._is_settling = False
            return
        self._bytes[self._is_trying] += num_bytes
        self._ns[self._is_trying] += duration_ns
        self._window_ns += duration_ns
        self._num_parts += 1
        if self._window_ns >= WINDOW_NS and self._num_parts >= WINDOW_PARTS:
            self._end_window()

    def on_refused(self) -> None:
        """So many are not to be had: the level below, and no trial for a while."""
        self._at = max(self._levels.index(self.level) - 1, 0)
        self._num_rests = min(RESTS_REFUSED * self._num_rests, RESTS_MAX)
        self._begin(_Phase.REST)

    def _end_window(self) -> None:
        self._window_ns = self._num_parts = 0
        self._num_windows_left -= 1
        if self._phase is not _Phase.REST:
            self._is_trying = not self._is_trying
            self._is_settling = True
            if not self._is_trying:
                self._judge(is_over=not self._num_windows_left)
        elif not self._num_windows_left:
            self._begin(_Phase.UP)

    def _judge(self, is_over: bool) -> None:
        """After as many windows of one level as of the other."""
        before, tried = (self._bytes[i] / self._ns[i] for i in (False, True))
        least = before * (1 + GAIN if self._phase is _Phase.UP else 1 - LOSS)
        if is_over and tried >= least and tried > 0:
            self._at += self._phase.value
            self._num_rests = RESTS_MIN
            self._begin(self._phase)
        elif is_over or tried < HOPELESS * before:
            self._begin(_Phase.DOWN if self._phase is _Phase.UP else _Phase.REST)

    def _begin(self, phase: _Phase) -> None:
        """A trial, the next one if there is no such level, or a rest."""
        if phase is _Phase.UP and self._at == len(self._levels) - 1:
            phase = _Phase.DOWN
        if phase is _Phase.DOWN and self._at == 0:
            phase = _Phase.REST
        self._phase = phase
        self._bytes, self._ns = [0, 0], [0, 0]  # at the level before, at the one that is tried
        self._window_ns = self._num_parts = 0
        self._num_windows_left = 2 * WINDOWS
        self._is_trying = False
        self._is_settling = True
        if phase is _Phase.REST:
            self._num_windows_left = self._num_rests
            self._num_rests = min(2 * self._num_rests, RESTS_MAX)
