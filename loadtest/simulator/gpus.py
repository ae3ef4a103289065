"""Emulated GPUs: each runs what it is sent, one batch after the other."""

from collections import deque

from loadtest.simulator.log import PREEMPTED, Batch


class EmulatedGpu:
    """One GPU. What it will do is known as soon as it was sent a batch, so no event is needed for a
    batch's start.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._batches: deque[Batch] = deque()
        self._last_end_ns = 0  # of the last batch here
        self._free_ns = 0  # end of the last batch that was here and ran

    def take(self, batch: Batch) -> None:
        """Queue a batch and work out when it will run."""
        self._batches.append(batch)
        self._plan(batch)

    def _plan(self, batch: Batch) -> None:
        batch.start_ns = max(batch.here_at_ns, self._last_end_ns)
        batch.end_ns = self._last_end_ns = batch.start_ns + batch.run_ns

    def finish(self, batch: Batch) -> None:
        """The oldest batch is over."""
        assert self._batches[0] is batch, "a batch ended before an older one"
        self._batches.popleft()
        self._free_ns = batch.end_ns
        batch.is_over = True

    def preempt(self, batch: Batch, at_ns: int) -> list[Batch]:
        """Stop a batch at this instant; the batches behind it whose times changed."""
        batches = list(self._batches)
        index = batches.index(batch)
        before, behind = batches[:index], batches[index + 1 :]
        batch.is_over = True
        batch.end = PREEMPTED
        batch.start_ns = min(batch.start_ns, at_ns)
        batch.end_ns = min(max(batch.start_ns, at_ns), batch.end_ns)
        self._batches.remove(batch)
        if not before and batch.end_ns > batch.start_ns:
            self._free_ns = batch.end_ns
        self._last_end_ns = before[-1].end_ns if before else self._free_ns
        for other in behind:
            self._plan(other)
        return behind
