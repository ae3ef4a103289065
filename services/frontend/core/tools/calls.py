"""What a reply turns out to hold, in order."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool begins; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the JSON that the last call's arguments are."""

    text: str


Event: TypeAlias = Said | Called | Argued
