"""What is in the store of a lease, and what the lease's core asks its shell to do."""

from dataclasses import dataclass

from shared.effects import WakeAt
from shared.messages import LeaderLease

NOBODY = ""  # the instance in a lease that was given back


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store holds: no lease (None), or one. `revision` is 0 if there never was any."""

    lease: LeaderLease | None
    revision: int


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the store; answer with `on_read` or `on_no_answer`, soon."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Write if the store's revision is `expected_revision`; answer with `on_written`, `on_conflict`
    or `on_no_answer`, soon.
    """

    expected_revision: int
    lease: LeaderLease


@dataclass(frozen=True, slots=True)
class AskHolder:
    """Ask whoever holds the lease whether it is there; answer with `on_holder` or
    `on_holder_silent`, soon.
    """


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the others that the store took this lease."""

    stored: Stored


@dataclass(frozen=True, slots=True)
class Lead:
    """This instance leads from now on, under `fence`; also when it led under a lower one."""

    fence: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """Dispatch nothing: the lease could not be renewed, and somebody may be about to take it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Nobody took the lease: go on under the same fence."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Another instance holds or held the lease. Final: nothing follows."""


@dataclass(frozen=True, slots=True)
class Released:
    """The lease is given back, or was never held. Final: nothing follows."""


LeaseEffect = (
    ReadLease
    | WriteLease
    | AskHolder
    | Announce
    | Lead
    | Suspend
    | Resume
    | Lost
    | Released
    | WakeAt
)
