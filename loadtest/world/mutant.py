"""One change of one line that breaks the code. The simulation is worth what it finds of them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is broken, and how: `old`, which stands once in the file, becomes `new`."""

    name: str
    path: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Break the code under `root`.

        Raises:
            AssertionError: the code has changed since: the line is not there, or twice.
        """
        file = root / self.path
        text = file.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {self.path} has changed"
        file.write_text(text.replace(self.old, self.new))
