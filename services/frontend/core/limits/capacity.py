"""Limits of one frontend: input held (large bodies, inputs of one-shot models), choices generated
at once, and what a tenant does in a minute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from shared.errors import InvalidRequest, NoCapacity, TenantQuota
from shared.ids import TenantId

FREE_BODY_BYTES = 64 * 1024  # larger bodies take room


class PayloadTooLarge(InvalidRequest):
    """The body is larger than this frontend takes."""

    code = "request_too_large"
    http_status = 413


class TooManyRequests(NoCapacity):
    """This frontend has as many generations or inputs as it takes."""

    code = "rate_limit_exceeded"
    http_status = 429


@dataclass(slots=True)
class Capacity:
    """Inputs and their bytes, each with a limit. What is taken must be given back.

    Attributes:
        num_max: inputs.
        bytes_max: of all inputs together, as they go over the wire.
    """

    num_max: int
    bytes_max: int
    num: int = 0
    num_bytes: int = 0

    @property
    def num_free(self) -> int:
        """Inputs for which there is room."""
        return self.num_max - self.num

    @property
    def num_free_bytes(self) -> int:
        """Bytes for which there is room."""
        return self.bytes_max - self.num_bytes

    def take(self, num: int, num_bytes: int) -> bool:
        """Whether there is room; if so it is taken."""
        if self.num + num > self.num_max or self.num_bytes + num_bytes > self.bytes_max:
            return False
        self.num += num
        self.num_bytes += num_bytes
        return True

    def give(self, num: int, num_bytes: int) -> None:
        """Give back what was taken."""
        self.num -= num
        self.num_bytes -= num_bytes
        assert self.num >= 0 and self.num_bytes >= 0, "more given back than was taken"


class Taking(Protocol):
    """A `Capacity`, or a tenant's part of it."""

    def take(self, num: int, num_bytes: int) -> bool:
        """Whether there is room; if so it is taken."""
        ...

    def give(self, num: int, num_bytes: int) -> None:
        """Give back what was taken."""
        ...


class HeldCapacity:
    """The room that one body takes while it is received and processed. A context: leaving it gives
    everything back.

    Args:
        free_bytes: bodies up to this length take nothing.
    """

    def __init__(self, capacity: Taking, free_bytes: int = FREE_BODY_BYTES) -> None:
        self._capacity = capacity
        self._free_bytes = free_bytes
        self._num_bytes = 0

    def __enter__(self) -> "HeldCapacity":
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """The body is not kept any more."""
        self._capacity.give(0, self._num_bytes)
        self._num_bytes = 0

    def move(self) -> "HeldCapacity":
        """Move what is taken to a new holder, which the caller must close."""
        other = HeldCapacity(self._capacity, self._free_bytes)
        other._num_bytes, self._num_bytes = self._num_bytes, 0
        return other

    def grow_to(self, num_bytes: int) -> None:
        """So many bytes of the body were received.

        Raises:
            NoCapacity: there is no room for it.
        """
        if num_bytes <= self._free_bytes:
            return
        if not self._capacity.take(0, num_bytes - self._num_bytes):
            raise NoCapacity("too many large bodies at once")
        self._num_bytes = num_bytes


class Slots:
    """One slot a choice: each is a turn of its own, with its own KV.

    Args:
        num_max: choices at once.
    """

    def __init__(self, num_max: int) -> None:
        self.num_max = num_max
        self.num = 0

    @property
    def num_free(self) -> int:
        """Choices for which there is room."""
        return self.num_max - self.num

    def take(self, num: int) -> bool:
        """Whether there is room for so many; if so it is taken."""
        if self.num + num > self.num_max:
            return False
        self.num += num
        return True

    def give(self, num: int) -> None:
        """Give back what was taken."""
        self.num -= num
        assert self.num >= 0, "more given back than was taken"


MINUTE_NS = 60_000_000_000
FULL_ONES_MAX = 1024  # tenants; above this, those with a full allowance are forgotten


class TenantRate:
    """So many a minute for each tenant; a whole minute's worth may come at once.

    Args:
        per_minute: 0: any number.
        what: they are called, in plural.
    """

    def __init__(self, per_minute: int, what: str, now_ns: Callable[[], int]) -> None:
        self._per_minute = per_minute
        self._what = what
        self._now_ns = now_ns
        self._free_at_ns: dict[TenantId, int] = {}  # when it has a whole minute's worth again

    def take(self, tenant: TenantId) -> None:
        """Count one more.

        Raises:
            TenantQuota: it is too early for another one.
        """
        if not self._per_minute:
            return
        now_ns, step_ns = self._now_ns(), MINUTE_NS // self._per_minute
        free_at_ns = max(self._free_at_ns.get(tenant, now_ns), now_ns) + step_ns
        if (early_ns := free_at_ns - now_ns - MINUTE_NS) > 0:
            raise TenantQuota(
                f"this tenant has made too many {self._what}: it may make {self._per_minute} a "
                "minute",
                retry_after_s=ceil(early_ns / 1e9),
            )
        self._free_at_ns[tenant] = free_at_ns
        if len(self._free_at_ns) > FULL_ONES_MAX:
            self._free_at_ns = {of: at for of, at in self._free_at_ns.items() if at > now_ns}
