"""Other names under which models are served: clients may have one built in."""

from collections.abc import Callable, Collection, Sequence


class ModelNames:
    """Attributes:
    others: every such name, in the order in which they were given.
    """

    def __init__(self, given: Sequence[str]) -> None:
        """Args:
        given: each ``NAME=MODEL``, or ``NAME``: of the only model for text.
        """
        self._targets = dict(map(parse_name, given))
        self._latest: dict[str, str] = {}  # what a name stood for that names no model itself
        self.others = tuple(self._targets)

    def of(self, name: str, served: Callable[[], Collection[str]]) -> str:
        """The model's own name; `name` itself, if it is none of these or stands for nothing.

        Args:
            served: names of the models for text that can be asked now. While there is none, the
                one that there was is meant.
        """
        if name not in self._targets:
            return name
        if (target := self._targets[name]) is not None:
            return target
        now = served()
        if len(now) == 1:
            (self._latest[name],) = now
        elif now:
            self._latest.pop(name, None)
        return self._latest.get(name, name)


def parse_name(given: str) -> tuple[str, str | None]:
    """A name, and the model that it stands for; None: the only one.

    Raises:
        ValueError: one of them is empty.

    >>> parse_name("gpt-4o=smollm2-135m"), parse_name("gpt-4o")
    (('gpt-4o', 'smollm2-135m'), ('gpt-4o', None))
    """
    name, equals, model = given.partition("=")
    if not name or (equals and not model):
        raise ValueError(f"{given!r}: write NAME, or NAME=MODEL")
    return name, model or None
