"""Limits on what one tenant has of this frontend at once, so that others get something too."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.frontend.core.limits.capacity import Capacity
from shared.errors import InvalidRequest, TenantQuota
from shared.ids import TenantId
from shared.wire.sessions import DEFAULT_EXPIRY_S

Kind = Literal["turns", "waiting_tokens", "jobs", "job_bytes"]
Amounts = Mapping[Kind, int]
NOTHING: Amounts = {}

SHARE = 4  # a tenant may have so many times what is free

PRIORITIES = (-(2**31), 2**31 - 1)
WORDS: dict[Kind, str] = {
    "turns": "choices that are generated at once",
    "waiting_tokens": "prompt tokens that wait for their first token",
    "jobs": "inputs for one-shot models at once",
    "job_bytes": "bytes of inputs and large bodies at once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Limits of one tenant. 0: no limit of its own; turns, jobs and their bytes are then limited to
    its share of the frontend's, see `Quotas`.

    Attributes:
        turns: choices at once.
        waiting_tokens: of the prompts of turns that have no token yet.
        jobs: inputs for one-shot models at once.
        job_bytes: of those inputs, and of large bodies.
        sessions: with a record in Redis.
        session_bytes: of those records.
        priority: the lowest and the highest that it may ask for.
        kv_expiry_s: how long its KV outlives its last use; 0: as every tier has it.
        kv_expiry_s_max: the longest that a request may ask for; 0: `kv_expiry_s`, or else a day.
    """

    turns: int = 0
    waiting_tokens: int = 0
    jobs: int = 0
    job_bytes: int = 0
    sessions: int = 0
    session_bytes: int = 0
    priority: tuple[int, int] = PRIORITIES
    kv_expiry_s: int = 0
    kv_expiry_s_max: int = 0


class Quotas:
    """Usage and limits of each tenant.

    Args:
        default: limits of tenants that have none of their own.
        own: limits of those that have.
        free: by kind, how much of the frontend's total is free, if several tenants share it. A
            tenant without a limit then has at most `SHARE` times what is left for the others: one
            alone may have 4/5 of the total, two 4/9 each, and something is always left for a
            tenant that has nothing yet.
    """

    def __init__(
        self,
        default: TenantLimits,
        own: Mapping[TenantId, TenantLimits],
        free: Mapping[Kind, Callable[[], int]] | None = None,
    ) -> None:
        self._default = default
        self._own = own
        self._free = free or {}
        self._used: dict[TenantId, dict[Kind, int]] = {}

    @property
    def is_unused(self) -> bool:
        """Whether no tenant has anything."""
        return not self._used

    def of(self, tenant: TenantId) -> TenantLimits:
        """The tenant's limits."""
        return self._own.get(tenant, self._default)

    def used(self, tenant: TenantId, kind: Kind) -> int:
        """How much the tenant has."""
        return self._used[tenant].get(kind, 0) if tenant in self._used else 0

    def take(self, tenant: TenantId, amounts: Amounts) -> Kind | None:
        """Take all of `amounts`, or nothing. Returns the limit that is exceeded, if any."""
        if (kind := self._passed(tenant, amounts)) is not None:
            return kind
        used = self._used.setdefault(tenant, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount
        return None

    def take_or_raise(self, tenant: TenantId, amounts: Amounts, held: Amounts = NOTHING) -> None:
        """Take all of `amounts`.

        Args:
            held: what the same request took before.

        Raises:
            InvalidRequest: the tenant may never have as much at once.
            TenantQuota: it may not at the moment.
        """
        kind = self.take(tenant, amounts)
        if kind is None:
            return
        limit, whole = self._limit(tenant, kind), held.get(kind, 0) + amounts[kind]
        if limit and whole > limit:
            raise InvalidRequest(
                f"the request takes {whole} {WORDS[kind]} or more, and this tenant may have "
                f"{limit} (its limit {kind!r})",
                code=TenantQuota.code,
            )
        raise _refusal(kind, limit)

    def give(self, tenant: TenantId, amounts: Amounts) -> None:
        """Give back what was taken."""
        used = self._used.get(tenant, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) - amount
            assert used[name] >= 0, "more given back than was taken"
        if not any(used.values()):  # without keys any client may name tenants
            self._used.pop(tenant, None)

    def check_turns(self, tenant: TenantId) -> None:
        """Check early, before work on a prompt.

        Raises:
            TenantQuota: the tenant has as many turns as it may.
        """
        if self._passed(tenant, {"turns": 1}) is not None:
            raise _refusal("turns", self._limit(tenant, "turns"))

    def _passed(self, tenant: TenantId, amounts: Amounts) -> Kind | None:
        for kind, amount in amounts.items():
            limit = self._limit(tenant, kind)
            if not limit and kind in self._free:
                free = self._free[kind]()
                limit = SHARE * free if amount <= free else 0  # else it is full for every tenant
            if amount and limit and self.used(tenant, kind) + amount > limit:
                return kind
        return None

    def _limit(self, tenant: TenantId, kind: Kind) -> int:
        limit: int = getattr(self.of(tenant), kind)
        return limit


class Admission:
    """The turns of one request in their tenant's quotas. A context: leaving it gives everything
    back.

    Args:
        prompts: tokens of each turn's prompt.

    Raises (on entering):
        InvalidRequest: the tenant may never have so much at once.
        TenantQuota: it may not at the moment.
    """

    def __init__(self, quotas: Quotas, tenant: TenantId, prompts: Sequence[int]) -> None:
        self._quotas = quotas
        self._tenant = tenant
        self._waiting = list(prompts)

    def __enter__(self) -> "Admission":
        self._quotas.take_or_raise(self._tenant, self._amounts())
        return self

    def __exit__(self, *_: object) -> None:
        self._quotas.give(self._tenant, self._amounts())

    def on_token(self, index: int) -> None:
        """Turn number `index` has a token, not necessarily its first."""
        num_tokens, self._waiting[index] = self._waiting[index], 0
        if num_tokens:
            self._quotas.give(self._tenant, {"waiting_tokens": num_tokens})

    def _amounts(self) -> Amounts:
        return {"turns": len(self._waiting), "waiting_tokens": sum(self._waiting)}


class TenantCapacity:
    """A frontend's `Capacity`, within the quotas of one tenant."""

    def __init__(self, capacity: Capacity, quotas: Quotas, tenant: TenantId) -> None:
        self._capacity = capacity
        self._quotas = quotas
        self._tenant = tenant
        self._held: Counter[Kind] = Counter()

    def take(self, num: int, num_bytes: int) -> bool:
        """Whether there is room; if so it is taken.

        Raises:
            InvalidRequest: the tenant may never have so much at once.
            TenantQuota: it may not at the moment.
        """
        amounts: Amounts = {"jobs": num, "job_bytes": num_bytes}
        self._quotas.take_or_raise(self._tenant, amounts, self._held)
        if not self._capacity.take(num, num_bytes):
            self._quotas.give(self._tenant, amounts)
            return False
        self._held.update(amounts)
        return True

    def give(self, num: int, num_bytes: int) -> None:
        """Give back what was taken."""
        amounts: Amounts = {"jobs": num, "job_bytes": num_bytes}
        self._capacity.give(num, num_bytes)
        self._quotas.give(self._tenant, amounts)
        self._held.subtract(amounts)


def priority_within(allowed: tuple[int, int], asked: int | None, default: int) -> int:
    """The priority of a request.

    Args:
        asked: what it asks for, if anything.
        default: what it has otherwise, or what is nearest to that and allowed.

    Raises:
        InvalidRequest: it asks for what is not allowed.
    """
    lowest, highest = allowed
    if asked is None:
        return min(max(default, lowest), highest)
    if not lowest <= asked <= highest:
        raise InvalidRequest(
            f"priority: {asked} is not in the range of this tenant, {lowest} to {highest}",
            "priority",
        )
    return asked


def _refusal(kind: Kind, limit: int) -> TenantQuota:
    may = f"it may have {limit} (its limit {kind!r})" if limit else "the rest is kept for others"
    return TenantQuota(f"this tenant has too many {WORDS[kind]}: {may}")


RELEASED_S = 60  # of a session that its client released


def kv_expiry_s(
    limits: TenantLimits, asked: int | None, *, retained_s: float = 0.0, is_released: bool = False
) -> int:
    """Seconds; 0: as configured for each tier.

    Args:
        limits: of the tenant.
        asked: by the request's own field.
        retained_s: for so long a hint wants it kept at least.
        is_released: a hint says that it is not needed any more.

    Raises:
        InvalidRequest: the field asks for more than the tenant may have.
    """
    usual = limits.kv_expiry_s
    most = max(limits.kv_expiry_s_max, usual) or DEFAULT_EXPIRY_S
    if asked is not None:
        if asked > most:
            raise InvalidRequest(
                f"kv_expiry_s: {asked} is more than the {most} seconds that this tenant may have",
                "kv_expiry_s",
            )
        return asked
    if is_released:
        return min(RELEASED_S, usual or most)
    retained = min(int(retained_s), most)
    return retained if retained > (usual or DEFAULT_EXPIRY_S) else usual
