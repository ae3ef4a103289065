"""Whether a pass may begin on an adapter of which later layers are still loading.

Each layer waits at its gate, so a forecast that is wrong costs time and never a wrong token. It
costs every turn in the batch, though: so the forecast errs to the safe side, and a layer that is
late nevertheless fails only the rows of its adapter, soon.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.worker.core.costs.costs import Line
from services.worker.core.engine_limits import LoraStart

TRY_AGAIN = 20  # turns, one of which has helpers though they were slow: that may be different now
MARGIN = 1.5  # loads may take so much longer than measured, or the pass be so much shorter


@dataclass(frozen=True, slots=True)
class FirstPass:
    """What a waiting turn would begin with.

    Attributes:
        num_tokens: new ones, with those of turns in the same step that are assisted.
        duration_ns: 0: not known.
    """

    num_tokens: int = 0
    duration_ns: int = 0


@dataclass(slots=True)
class StartModes:
    """How turns may begin whose adapter is loading.

    Attributes:
        assist_tokens: new tokens that helpers can take in a pass; 0: there are none now.
        assists: what helpers took for passes of so many tokens.
        _num_refused: turns that helpers were too slow for, since one of those had them.
    """

    lora_start: LoraStart = "auto"
    assist_tokens: int = 0
    assists: Line = field(default_factory=Line)
    _num_refused: int = 0

    @property
    def can_stream(self) -> bool:
        """When the later layers keep up."""
        return self.lora_start in {"auto", "stream"}

    def can_assist(self, num_tokens: int, wait_ns: float, *, was_refused: bool) -> bool:
        """At once, with so many tokens, at most `assist_tokens`.

        Args:
            wait_ns: until the pass could begin without helpers: they are not worth it, by default,
                if they take longer.
            was_refused: for the same turn, which is counted once however often it asks.
        """
        if self.lora_start != "auto":
            return self.lora_start == "assist"
        if self.assists.at(num_tokens) < wait_ns:
            return True
        if was_refused:
            return False
        self._num_refused = (self._num_refused + 1) % TRY_AGAIN
        return self._num_refused == 0


@dataclass(slots=True)
class Pace:
    """How fast an image comes, where the link's speed does not say: part of it is read from disk
    first.

    Attributes:
        since_ns: when its loads began.
        num_lacking: pages that it lacked then.
        is_from_disk: some of those are on disk, or may be.
    """

    since_ns: int = 0
    num_lacking: int = 0
    is_from_disk: bool = False

    def page_ns(self, num_lacking: int, now_ns: int) -> float:
        """A page took so long until now, waiting included; infinitely long while none has come.

        >>> Pace(since_ns=0, num_lacking=10, is_from_disk=True).page_ns(5, now_ns=1000)
        200.0
        """
        if not self.is_from_disk:
            return 0.0
        num_come = self.num_lacking - num_lacking
        return (now_ns - self.since_ns) / num_come if num_come > 0 else float("inf")


def wait_ns(lacking: Sequence[int], num_ahead: int, page_ns: float, pass_ns: int) -> float:
    """How long a pass must wait so that every layer is here before it is needed, as a pass goes
    through its layers evenly and loads come in the layers' order; not more than 0: it can begin.

    Args:
        lacking: pages that are loading, for each layer.
        num_ahead: other pages that may come before them.
        page_ns: of a load.
        pass_ns: 0: wait for all of them.

    >>> wait_ns([0, 2, 2], num_ahead=0, page_ns=10, pass_ns=180)
    -20.0
    >>> wait_ns([0, 2, 2], num_ahead=4, page_ns=10, pass_ns=180)
    20.0
    >>> wait_ns([0, 2, 2], num_ahead=4, page_ns=10, pass_ns=0)
    80.0
    """
    layer_ns = pass_ns / len(lacking) / MARGIN
    longest_ns = float("-inf")
    num_pages = num_ahead
    for layer, num in enumerate(lacking):
        num_pages += num
        if num:
            longest_ns = max(longest_ns, num_pages * page_ns - layer * layer_ns)
    return longest_ns
