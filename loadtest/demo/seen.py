"""What was seen of each turn, and which turns of the two sides belong together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadtest.demo.script import Part, Side
from loadtest.users.measures import places_of

NEAR = "pool"  # next to the GPU
COMPUTED = "new"
SMALL_SHARE = 0.05


class Which(NamedTuple):
    """Names a turn; on the other side there is one of the same name.

    Attributes:
        run: of the part, from 0 on.
        number: of the turn in its conversation.
    """

    part: Part
    run: int
    who: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A turn as its sender saw it.

    Attributes:
        num_prompt: tokens; num_history: those of it that were said before.
        cached: tokens that were not computed, by where they were when the turn came.
        lead_s: from its hint to the turn; None: there was none.
    """

    which: Which
    side: Side
    ttft_ms: float
    num_prompt: int
    num_history: int
    cached: dict[str, int] = field(default_factory=dict)
    lead_s: float | None = None

    @property
    def is_first(self) -> bool:
        """Its conversation begins with it: there is nothing that could be prefetched."""
        return self.num_history == 0

    @property
    def num_cached(self) -> int:
        """Tokens that were not computed again."""
        return sum(self.cached.values())

    @property
    def num_recomputed(self) -> int:
        """Tokens of history that were. The last one does not count: it never had KV."""
        return max(self.num_history - 1 - self.num_cached, 0)

    @property
    def num_near(self) -> int:
        """Tokens that were next to the GPU when the turn came."""
        return self.cached.get(NEAR, 0)

    @property
    def is_near(self) -> bool:
        """All of its history was."""
        return not self.is_first and self.num_near >= self.num_history - 1


def seen_of(which: Which, side: Side, ttft_ms: float, usage: dict[str, Any], num_history: int,
            lead_s: float | None = None) -> Seen:  # fmt: skip
    """From what the server says of a turn at its end."""
    return Seen(
        which=which,
        side=side,
        ttft_ms=ttft_ms,
        num_prompt=int(usage.get("prompt_tokens") or 0),
        num_history=num_history,
        cached=places_of(usage),
        lead_s=lead_s,
    )


def where(seen: Seen) -> str:
    """The one or two places where most of its history was, unless that is less than a twentieth.

    >>> which = Which("chat", 0, "Ada", 1)
    >>> where(Seen(which=which, side="with", ttft_ms=1, num_prompt=110, num_history=101,
    ...            cached={"host": 30, "pool": 70}))
    'pool+host'
    """
    if seen.is_first:
        return "new"
    shares = {**seen.cached, COMPUTED: seen.num_recomputed}
    largest = sorted(shares.items(), key=lambda each: -each[1])
    return "+".join(place for place, num in largest[:2] if num > SMALL_SHARE * seen.num_history)


def of_side(seen: Iterable[Seen], part: Part, side: Side) -> list[Seen]:
    """Turns that go on with a conversation: those that a hint can be of use to."""
    return [each for each in seen if (each.which.part, each.side) == (part, side)
            and not each.is_first]  # fmt: skip


def pairs(seen: Sequence[Seen], part: Part) -> list[tuple[Seen, Seen]]:
    """Turns of the same name, without a hint and with one; those that have no partner are left
    out.
    """
    hinted = {each.which: each for each in of_side(seen, part, "with")}
    return [
        (each, hinted[each.which])
        for each in of_side(seen, part, "without")
        if each.which in hinted
    ]
