"""Tools that run for an agent: its turn comes when the last of them is done."""

from dataclasses import dataclass

from symphony_client.core.durations import Durations

RUNNING_MAX = 256  # of one agent; of more the one that runs for longest is dropped


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    since_s: float


class RunningTools:
    """Those of one agent. The time is an argument; each that ends is learned from.

    Args:
        durations: shared by all agents, which share tools.
    """

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._running: dict[str, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, name: str, call_id: str, now_s: float) -> None:
        """It runs now."""
        self._running.pop(call_id, None)
        if len(self._running) >= RUNNING_MAX:
            del self._running[next(iter(self._running))]
        self._running[call_id] = _Running(name, now_s)

    def end(self, call_id: str, now_s: float, *, is_learned: bool = True) -> bool:
        """It is done; whether it ran. What was cancelled is not learned from."""
        running = self._running.pop(call_id, None)
        if running is not None and is_learned:
            self._durations.learn(running.name, max(now_s - running.since_s, 0.0), now_s)
        return running is not None

    def clear(self) -> None:
        """They are abandoned."""
        self._running.clear()

    def left_s(self, now_s: float) -> float | None:
        """How long until the last is done; None: of none is it known how long it takes. If that is
        known of some only, the turn comes no sooner than those are done.
        """
        left = []
        for running in self._running.values():
            elapsed_s = max(now_s - running.since_s, 0.0)
            total_s = self._durations.expected(running.name, now_s, elapsed_s=elapsed_s)
            if total_s is not None:
                left.append(total_s - elapsed_s)
        return max(left, default=None)
