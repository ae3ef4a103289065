"""Which requests are traced, within a limit on their number."""

from dataclasses import dataclass

from shared.tracing import TraceContext

SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class TraceSampler:
    """A request follows its sender's trace, or begins one by chance; of both so many a second.

    Attributes:
        share: of requests without a trace that begin one, 0 to 1.
        per_s: traces at most; a second's worth may come at once.
    """

    share: float
    per_s: float = 20.0  # what a collector of one machine takes beside its work
    _free_at_ns: int = 0  # when a whole second's worth is there again

    def takes(self, sender: TraceContext | None, draw: float, now_ns: int) -> bool:
        """Whether a request is traced.

        Args:
            sender: the trace that it is part of; None: none.
            draw: at random from 0 to below 1.
        """
        wanted = sender.is_sampled if sender is not None else draw < self.share
        if not wanted or self.per_s <= 0:
            return False
        free_at_ns = max(self._free_at_ns, now_ns) + int(SECOND_NS / self.per_s)
        if free_at_ns > now_ns + max(SECOND_NS, int(SECOND_NS / self.per_s)):
            return False
        self._free_at_ns = free_at_ns
        return True
