"""When to answer advisories that are refused: the more of them a sender sends, the longer each
waits for its answer. That slows down a sender that waits for answers; one that does not is held
back by the kernel, since its next request is not read before the last one is answered.
"""

from collections import OrderedDict

from shared.ids import TenantId

ANSWER_NS = 1_000_000_000 // 32  # between two refusals of one sender
HOLD_NS_MAX = 30_000_000_000
HELD_MAX = 1024  # at once, of all senders: of more, some are answered at once
SENDERS_MAX = 4096

Sender = tuple[TenantId, str]


class DelayedRefusals:
    """Refusals that wait to be sent."""

    def __init__(self) -> None:
        self._next_at_ns: OrderedDict[Sender, int] = OrderedDict()
        self.num_held = 0

    def hold(self, sender: Sender, now_ns: int) -> int:
        """How long to hold one more answer back, ns; 0: not at all. Call `release` after that."""
        answer_at_ns = max(self._next_at_ns.get(sender, now_ns), now_ns)
        self._set_next(sender, min(answer_at_ns + ANSWER_NS, now_ns + HOLD_NS_MAX))
        if self.num_held >= HELD_MAX or answer_at_ns == now_ns:
            return 0
        self.num_held += 1
        return answer_at_ns - now_ns

    def is_due(self, sender: Sender, now_ns: int) -> bool:
        """Whether to answer one more at all, of a sender that cannot be made to wait."""
        if self._next_at_ns.get(sender, now_ns) > now_ns:
            return False
        self._set_next(sender, now_ns + ANSWER_NS)
        return True

    def release(self) -> None:
        """One that was held is answered, or its client is gone."""
        self.num_held -= 1
        assert self.num_held >= 0, "more released than were held"

    def _set_next(self, sender: Sender, at_ns: int) -> None:
        self._next_at_ns[sender] = at_ns
        self._next_at_ns.move_to_end(sender)
        if len(self._next_at_ns) > SENDERS_MAX:
            self._next_at_ns.popitem(last=False)
