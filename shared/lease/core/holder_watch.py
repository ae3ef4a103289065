"""Whether the holder of a lease is still there, as a spare finds out long before the lease ends.

A spare asks the holder again and again, on a subject that only the holder serves. The bus itself
answers where nobody serves it: the holder's connection is gone, and with it all that it could do.
That is proof where the holder was heard on this connection before; otherwise it may only be on its
way back, as after a restart of the bus, and is given time. Silence proves nothing: it may be busy.
"""

from shared.lease.core.effects import Stored

SURE_AFTER = 2  # answers "nobody" in a row: one can be a subscription that is being renewed


class HolderWatch:
    """What a spare knows of the holder beside what the store says.

    Args:
        probe_ns: between two questions.
        return_ns: how long nobody must be there until a holder that was never heard on this
            connection counts as gone.
    """

    def __init__(self, *, probe_ns: int, return_ns: int) -> None:
        self._probe_ns = probe_ns
        self._return_ns = return_ns
        self._instance: str | None = None  # None: no lease is stored
        self._was_cut = False
        self._was_heard = False
        self._num_nobody = 0
        self._nobody_since_ns = 0
        self._probe_at_ns = 0
        self._is_asking = False

    def on_news(self, stored: Stored) -> None:
        """The store holds something new: whoever wrote it was there."""
        instance = None if stored.lease is None else stored.lease.instance
        if instance != self._instance:
            self._instance, self._was_heard = instance, False
        self._num_nobody = 0

    def on_cut(self) -> None:
        """The own connection broke: the holder's may have, too, and comes back in its own time."""
        self._was_cut, self._was_heard = True, False
        self._num_nobody = 0

    def on_standstill(self) -> None:
        """This process stood still, and perhaps its whole machine: begin anew."""
        self._num_nobody = 0

    def on_answer(self, instance: str | None, now_ns: int) -> None:
        """`instance` says that it holds the lease; None: nobody does."""
        self._answered(now_ns)
        if instance is not None:
            self._num_nobody = 0
            self._was_heard = self._was_heard or instance == self._instance
            return
        if self._num_nobody == 0:
            self._nobody_since_ns = now_ns
        self._num_nobody += 1

    def on_silence(self, now_ns: int) -> None:
        """The question was not answered in time, not even by the bus."""
        self._answered(now_ns)
        self._num_nobody = 0

    def is_gone(self, now_ns: int) -> bool:
        """Whether nobody holds the lease, as far as anybody can tell."""
        if self._num_nobody < SURE_AFTER:
            return False
        is_first_start = self._instance is None and not self._was_cut
        is_proven = self._was_heard or is_first_start
        return is_proven or now_ns - self._nobody_since_ns >= self._return_ns

    def ask(self, now_ns: int) -> bool:
        """Whether to ask now; the answer comes by `on_answer` or `on_silence`."""
        if self._is_asking or now_ns < self._probe_at_ns:
            return False
        self._is_asking = True
        return True

    @property
    def ask_at_ns(self) -> int | None:
        """When to ask next; None while a question is under way."""
        return None if self._is_asking else self._probe_at_ns

    def _answered(self, now_ns: int) -> None:
        self._is_asking = False
        self._probe_at_ns = now_ns + self._probe_ns
