"""Effects that cores of several services have in common."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call the core's `on_wake` at this instant; replaces an earlier alarm."""

    at_ns: int
