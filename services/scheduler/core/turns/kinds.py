"""What steps take on workers of one kind: the mean of what each of them told last.

Workers of one kind measure a little differently, each time. Where turns go must not follow from
that, so whoever's steps take about as long as others' is reckoned with what is usual of them; and
all of them with the very same figures, so that equals cost the same. Steps are compared as they
were seen, of so many rows, and whole: what takes how much of a step is told apart badly where all
steps were alike, and one worker of a hundred that believed its rows to cost half drew everybody.
"""

from dataclasses import dataclass, replace

from shared.ids import WorkerId

ALIKE = 0.2  # steps that differ by less take as long: what is measured is no more exact
ROWS_COMPARED = 8  # of a worker that does not tell how many it saw
ROWS_COMPARED_MAX = 1 << 16
TOKENS_COMPARED = 256
KINDS_MAX = 8  # of one model; who is like nobody then is by itself


@dataclass(slots=True)
class Steps:
    """Attributes:
    token_ms: a prompt token more in a step.
    step_ms: a step without rows.
    row_ms: a decoding turn more in a step.
    """

    token_ms: float
    step_ms: float
    row_ms: float

    def is_like(self, other: "Steps", num_rows: int = ROWS_COMPARED) -> bool:
        """Whether they may be of one kind, by steps with so many rows, without a prompt and with.

        >>> usual = Steps(token_ms=0.1, step_ms=10.0, row_ms=0.05)
        >>> usual.is_like(Steps(0.1, 10.5, 0.01)), usual.is_like(Steps(0.1, 20.0, 0.05))
        (True, False)
        """
        pairs = [
            (self._with(num_rows, num_tokens), other._with(num_rows, num_tokens))
            for num_tokens in (0, TOKENS_COMPARED)
        ]
        return all(abs(own_ms - other_ms) <= ALIKE * other_ms for own_ms, other_ms in pairs)

    def _with(self, num_rows: int, num_tokens: int) -> float:
        """What such a step takes, ms."""
        return self.step_ms + num_rows * self.row_ms + num_tokens * self.token_ms


GUESSED = Steps(token_ms=0.1, step_ms=10.0, row_ms=0.05)  # an 8 B model on a GPU of 2022


class _Kind:
    """Attributes:
    steps: the mean; its members share it.
    told: by member.
    """

    def __init__(self) -> None:
        self.steps = Steps(0.0, 0.0, 0.0)
        self.told: dict[WorkerId, Steps] = {}
        self._sums = Steps(0.0, 0.0, 0.0)

    def add(self, worker_id: WorkerId, told: Steps) -> None:
        """One more, in a time that does not depend on how many there are."""
        self.told[worker_id] = told
        self._count(told, 1)

    def drop(self, worker_id: WorkerId) -> None:
        """One less."""
        self._count(self.told.pop(worker_id), -1)

    def _count(self, told: Steps, sign: int) -> None:
        num, sums, mean = len(self.told), self._sums, self.steps
        sums.token_ms += sign * told.token_ms
        sums.step_ms += sign * told.step_ms
        sums.row_ms += sign * told.row_ms
        if not num:
            return  # somebody who has not measured may still be reckoned with as it was
        mean.token_ms, mean.step_ms, mean.row_ms = (
            sums.token_ms / num, sums.step_ms / num, sums.row_ms / num,
        )  # fmt: skip


class Kinds:
    """The workers of one model, by kind; one vote each, however often it tells."""

    def __init__(self) -> None:
        self._kinds: list[_Kind] = []
        self._of: dict[WorkerId, _Kind] = {}
        self._usual = replace(GUESSED)  # one for all that have not measured, and goes on changing

    def tell(self, worker_id: WorkerId, told: Steps, mean_rows: int = 0) -> Steps:
        """A worker has measured; returns what to reckon with, which goes on changing.

        Args:
            mean_rows: of the steps that it saw; 0 or less: it does not tell.
        """
        self._leave(worker_id)
        num_rows = min(mean_rows, ROWS_COMPARED_MAX) if mean_rows > 0 else ROWS_COMPARED
        like = [kind for kind in self._kinds if told.is_like(kind.steps, num_rows)]
        kind = max(like, key=lambda each: len(each.told), default=None)
        if kind is None:
            kind = _Kind()
            if len(self._kinds) < KINDS_MAX:
                self._kinds.append(kind)
        kind.add(worker_id, told)
        self._of[worker_id] = kind
        self._find_usual()
        return kind.steps

    def of(self, worker_id: WorkerId) -> Steps:
        """What is reckoned with for a worker that tells nothing new: the same as before, or what
        is usual of most, then and later; `GUESSED` as long as nobody has measured."""
        kind = self._of.get(worker_id)
        return self._usual if kind is None else kind.steps

    def forget(self, worker_id: WorkerId) -> None:
        """It is gone."""
        self._leave(worker_id)
        self._find_usual()

    def _leave(self, worker_id: WorkerId) -> None:
        if (kind := self._of.pop(worker_id, None)) is None:
            return
        kind.drop(worker_id)
        if not kind.told and kind in self._kinds:
            self._kinds.remove(kind)

    def _find_usual(self) -> None:
        kind = max(self._kinds, key=lambda each: len(each.told), default=None)
        most = GUESSED if kind is None else kind.steps
        usual = self._usual
        usual.token_ms, usual.step_ms, usual.row_ms = most.token_ms, most.step_ms, most.row_ms
