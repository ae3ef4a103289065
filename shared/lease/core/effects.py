"""The stored lease, and what the lease's core asks its shell to do."""

from dataclasses import dataclass

from shared.effects import WakeAt
from shared.wire.messages import LeaderLease

NO_INSTANCE = ""  # the instance in a released lease


@dataclass(frozen=True, slots=True)
class Stored:
    """Content of the store: a lease, or None. `revision` is 0 if there never was any."""

    lease: LeaderLease | None
    revision: int


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the store; answer soon with `on_read` or `on_no_answer`."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Write if the store's revision is `expected_revision`; answer soon with `on_written`,
    `on_conflict` or `on_no_answer`.
    """

    expected_revision: int
    lease: LeaderLease


@dataclass(frozen=True, slots=True)
class AskHolder:
    """Ask the holder of the lease whether it is alive; answer soon with `on_holder` or
    `on_holder_silent`.
    """


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce a successful write to the other instances."""

    stored: Stored


@dataclass(frozen=True, slots=True)
class Lead:
    """This instance leads from now on, under `fence`; also when it led under a lower one."""

    fence: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """Dispatch nothing: the lease could not be renewed, and a spare may be about to take it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The lease is still held: continue under the same fence."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Another instance holds or held the lease. Final: nothing follows."""


@dataclass(frozen=True, slots=True)
class Released:
    """The lease is released, or was never held. Final: nothing follows."""


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
