"""How much input of one-shot models one frontend holds at once."""

from dataclasses import dataclass


@dataclass(slots=True)
class Room:
    """Inputs and their bytes, each with a limit. What is taken is given back by who took it.

    Attributes:
        num_max: inputs.
        bytes_max: of all inputs together, as they go over the wire.
    """

    num_max: int
    bytes_max: int
    num: int = 0
    num_bytes: int = 0

    def take(self, num: int, num_bytes: int) -> bool:
        """Whether there is room; if so it is taken."""
        if self.num + num > self.num_max or self.num_bytes + num_bytes > self.bytes_max:
            return False
        self.num += num
        self.num_bytes += num_bytes
        return True

    def give(self, num: int, num_bytes: int) -> None:
        """Give back what was taken."""
        self.num -= num
        self.num_bytes -= num_bytes
        assert self.num >= 0 and self.num_bytes >= 0, "more given back than was taken"
