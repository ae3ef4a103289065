"""What can happen to an emulated GPU."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A GPU vanishes with every batch that it has.

    Attributes:
        at_ns: when.
        noticed_after_ns: so much later the scheduler takes it out and submits its jobs again.
        back_after_ns: so much later it is there again, empty; None for never. Not before it was
            noticed.
    """

    gpu: int
    at_ns: int
    noticed_after_ns: int = 0
    back_after_ns: int | None = None

    def __post_init__(self) -> None:
        back_ns = self.back_after_ns
        assert back_ns is None or back_ns >= self.noticed_after_ns, "back before it was missed"


def check_faults(faults: Iterable[GpuFault]) -> None:
    """A GPU can only vanish again when it is back."""
    ordered = sorted(faults, key=lambda fault: (fault.gpu, fault.at_ns))
    for first, second in pairwise(ordered):
        if first.gpu == second.gpu:
            is_back = first.back_after_ns is not None
            is_back = is_back and second.at_ns >= first.at_ns + (first.back_after_ns or 0)
            assert is_back, f"GPU {first.gpu} vanishes at {second.at_ns} ns and is not there"
