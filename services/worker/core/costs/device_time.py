"""What share of its time a device computes while there are steps to run."""

from dataclasses import dataclass


@dataclass(slots=True)
class DeviceTime:
    """Attributes:
    busy_ns: in steps.
    idle_ns: between steps, where the next one could have followed at once.
    """

    busy_ns: int = 0
    idle_ns: int = 0
    _ended_at_ns: int = 0  # of the last step; 0 where the next one could not follow it

    def on_step(self, started_at_ns: int, duration_ns: int) -> None:
        """A step ran, by the device's clock; `started_at_ns` is 0 where it was not measured."""
        self.busy_ns += duration_ns
        if not started_at_ns:
            return
        if self._ended_at_ns:
            self.idle_ns += max(started_at_ns - self._ended_at_ns, 0)
        self._ended_at_ns = started_at_ns + duration_ns

    def on_nothing_to_run(self) -> None:
        """The device waits for work."""
        self._ended_at_ns = 0
