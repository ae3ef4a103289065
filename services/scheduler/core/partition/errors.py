"""Why there is no partition."""

from typing import Literal

from shared.errors import NoCapacity

Bound = Literal["rate_max", "memory_max", "cost_max"]


class NoPartition(NoCapacity):
    """The bounds cannot hold, or no assignment within them was found in time.

    Attributes:
        bound: the one that cannot hold, where that is known.
        proven: False where the search only ran out of time.
    """

    code = "no_partition"

    def __init__(self, message: str, bound: Bound | None = None, proven: bool = True) -> None:
        super().__init__(message)
        self.bound = bound
        self.proven = proven
