"""What can happen to an emulated GPU."""

from dataclasses import dataclass


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
