"""The one order in which history is promoted, from disk to the arena and from there to a pool."""

from shared.wire.messages import ADVISORY_PRIORITY

DEMAND_PRIORITY = 100  # of a turn that is here: above every advisory's

Order = tuple[int, int, int, int]
NUM_KINDS = 3


def kind_of(priority: int) -> int:
    """How urgent something is, 0 most: a turn waits for it; it is hinted with more than the usual
    priority; it is hinted.
    """
    return 0 if priority >= DEMAND_PRIORITY else 1 if is_urgent(priority) else 2


def is_urgent(priority: int) -> bool:
    """Whether a turn, or a session's advisory, has more than the usual priority."""
    return priority > ADVISORY_PRIORITY


def load_order(priority: int, layer: int, number: int) -> Order:
    """Where a page stands: least first.

    Turns that are here come before sessions that are expected, and of those the ones whose
    advisories ask for more than others. Among them layer 0 of everything comes before layer 1 of
    anything, since a pass that has its first layers can begin; then the higher priority, then who
    asked first.

    Args:
        number: grows with every question.

    Source: SYMPHONY, section 3.4 (priority-based, layer-wise loading).

    >>> hint, high = load_order(1, 0, 1), load_order(2, 7, 2)
    >>> load_order(DEMAND_PRIORITY, 7, 3) < high < hint < load_order(0, 0, 0) < load_order(1, 1, 0)
    True
    """
    return kind_of(priority), layer, -priority, number
