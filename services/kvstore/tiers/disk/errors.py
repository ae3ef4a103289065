"""What can go wrong with the disk."""


class DiskFailed(Exception):
    """A read or a write did not happen; it may the next time."""


class DiskFull(DiskFailed):
    """There is no room for this write."""


class DiskDamaged(DiskFailed):
    """The database cannot be used until it is reset.

    Attributes:
        life: of the `Disk` at that time; a later one is another database.
    """

    def __init__(self, why: str, life: int) -> None:
        super().__init__(why)
        self.life = life


class CorruptPage(Exception):
    """The arena's bytes are not those whose checksum was announced."""
