"""What came of families that were held against transformers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["right", "refused", "not tried"]


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one variant of a family.

    Attributes:
        name: of transformers' class.
        reason: why it is refused, or could not be tried; empty: it is right.
    """

    family: str
    name: str
    variant: str
    verdict: Verdict
    reason: str


def families_of(rows: Iterable[Row], verdict: Verdict) -> list[str]:
    """Families with a variant of this verdict, and none of a better one."""
    order: list[Verdict] = ["right", "refused", "not tried"]
    best: dict[str, Verdict] = {}
    for row in rows:
        best[row.family] = min(best.get(row.family, row.verdict), row.verdict, key=order.index)
    return [family for family, found in best.items() if found == verdict]
