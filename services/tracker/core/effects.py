"""What the tracker core asks its shell to do."""

from dataclasses import dataclass
from typing import Literal

from shared.effects import WakeAt
from shared.messages import AdvisoryKey, ExpectSession

Outcome = Literal["submitted", "merged", "used", "late", "missed", "expired", "invalidated"]


@dataclass(frozen=True, slots=True)
class Expect:
    """Ask the scheduler to keep a place; tell the answer to `on_placed`."""

    message: ExpectSession


@dataclass(frozen=True, slots=True)
class Drop:
    """Tell the scheduler that the place is not needed any more."""

    key: AdvisoryKey


@dataclass(frozen=True, slots=True)
class Count:
    """An advisory came or ended; `missed` counts turns that had none."""

    outcome: Outcome


Effect = Expect | Drop | Count | WakeAt
