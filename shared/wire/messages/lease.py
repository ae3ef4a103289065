"""The lease of a leader: the record in the store, and the word that it was renewed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """Who leads; the one value under a lease's key in the store.

    Attributes:
        instance: the holder, unlike any other process's name; empty when it was given back.
        fence: grows with every new term; kept when the lease is given back.
        beat: renewals in this term; says nothing but that the holder lives.
    """

    instance: str
    fence: int
    beat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWritten:
    """Holder to spares: the store took this lease under this revision."""

    lease: LeaderLease
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """Holder to a spare that asks whether it is there."""

    instance: str
