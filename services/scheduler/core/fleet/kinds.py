"""Step times by kind of worker: the mean of the last report of each worker of that kind.

Workers on equal hardware measure slightly different step times. Placement must not follow this
noise, so workers whose steps take about equally long share one set of figures, and equal workers
have equal costs. Whole steps are compared, at the number of rows that the worker measured: the
parts of a step are hard to separate where all measured steps were alike, and one worker of a
hundred that underestimates its cost per row would attract every turn.
"""

from dataclasses import dataclass, replace

from shared.ids import WorkerId

ALIKE = 0.2  # relative difference below which steps count as equal: the measurement's error
ROWS_COMPARED = 8  # of a worker that does not report how many it measured
ROWS_COMPARED_MAX = 1 << 16
TOKENS_COMPARED = 256
KINDS_MAX = 8  # of one model; any further worker that matches none is a kind of its own


@dataclass(slots=True)
class Steps:
    """Attributes:
    token_ms: of each prompt token in a step.
    step_ms: of a step without rows.
    row_ms: of each decoding turn in a step.
    """

    token_ms: float
    step_ms: float
    row_ms: float

    def is_like(self, other: "Steps", num_rows: int = ROWS_COMPARED) -> bool:
        """Whether both may be of one kind: compares steps of so many rows without and with prompt.

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
        """Time of such a step, ms."""
        return self.step_ms + num_rows * self.row_ms + num_tokens * self.token_ms


GUESSED = Steps(token_ms=0.1, step_ms=10.0, row_ms=0.05)  # an 8 B model on a GPU of 2022


class _Kind:
    """Attributes:
    steps: the mean, an object shared by all members.
    reported: by member.
    """

    def __init__(self) -> None:
        self.steps = Steps(0.0, 0.0, 0.0)
        self.reported: dict[WorkerId, Steps] = {}
        self._sums = Steps(0.0, 0.0, 0.0)

    def add(self, worker_id: WorkerId, steps: Steps) -> None:
        """Add a member, in constant time."""
        self.reported[worker_id] = steps
        self._count(steps, 1)

    def drop(self, worker_id: WorkerId) -> None:
        """Remove a member."""
        self._count(self.reported.pop(worker_id), -1)

    def _count(self, steps: Steps, sign: int) -> None:
        num, sums, mean = len(self.reported), self._sums, self.steps
        sums.token_ms += sign * steps.token_ms
        sums.step_ms += sign * steps.step_ms
        sums.row_ms += sign * steps.row_ms
        if not num:
            return  # workers that have not measured may still use the last mean
        mean.token_ms, mean.step_ms, mean.row_ms = (
            sums.token_ms / num, sums.step_ms / num, sums.row_ms / num,
        )  # fmt: skip


class Kinds:
    """The workers of one model, by kind; each counts once, however often it reports."""

    def __init__(self) -> None:
        self._kinds: list[_Kind] = []
        self._of: dict[WorkerId, _Kind] = {}
        self._usual = replace(GUESSED)  # shared by all that have not measured; updated in place

    def update(self, worker_id: WorkerId, steps: Steps, mean_rows: int = 0) -> Steps:
        """Add a worker's measurement; returns the figures to use, which are updated in place.

        Args:
            mean_rows: of the steps that it measured; 0 or less: unknown.
        """
        self._leave(worker_id)
        num_rows = min(mean_rows, ROWS_COMPARED_MAX) if mean_rows > 0 else ROWS_COMPARED
        like = [kind for kind in self._kinds if steps.is_like(kind.steps, num_rows)]
        kind = max(like, key=lambda each: len(each.reported), default=None)
        if kind is None:
            kind = _Kind()
            if len(self._kinds) < KINDS_MAX:
                self._kinds.append(kind)
        kind.add(worker_id, steps)
        self._of[worker_id] = kind
        self._find_usual()
        return kind.steps

    def of(self, worker_id: WorkerId) -> Steps:
        """The figures of a worker that reports nothing new: those of its kind, or of the largest
        kind if it never measured; `GUESSED` as long as no worker has."""
        kind = self._of.get(worker_id)
        return self._usual if kind is None else kind.steps

    def forget(self, worker_id: WorkerId) -> None:
        """Remove a worker."""
        self._leave(worker_id)
        self._find_usual()

    def _leave(self, worker_id: WorkerId) -> None:
        if (kind := self._of.pop(worker_id, None)) is None:
            return
        kind.drop(worker_id)
        if not kind.reported and kind in self._kinds:
            self._kinds.remove(kind)

    def _find_usual(self) -> None:
        kind = max(self._kinds, key=lambda each: len(each.reported), default=None)
        most = GUESSED if kind is None else kind.steps
        usual = self._usual
        usual.token_ms, usual.step_ms, usual.row_ms = most.token_ms, most.step_ms, most.row_ms
