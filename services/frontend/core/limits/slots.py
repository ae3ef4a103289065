"""How many choices a frontend generates at once."""


class Slots:
    """One slot a choice: each is a turn of its own, with its own KV.

    Args:
        num_max: choices at once.
    """

    def __init__(self, num_max: int) -> None:
        self.num_max = num_max
        self.num = 0

    @property
    def num_free(self) -> int:
        """Choices for which there is room."""
        return self.num_max - self.num

    def take(self, num: int) -> bool:
        """Whether there is room for so many; if so it is taken."""
        if self.num + num > self.num_max:
            return False
        self.num += num
        return True

    def give(self, num: int) -> None:
        """Give back what was taken."""
        self.num -= num
        assert self.num >= 0, "more given back than was taken"
