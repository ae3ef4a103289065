"""Rate limits of advisories by their outcomes: token buckets that used advisories refill.

An advisory costs one token. One whose turn comes returns several, one that its sender withdraws
returns half, an unused one none. So a sender that is right at least once in `USED_GAIN` times is
not limited, and others may send the content of a bucket and then a few per second. A sender is one
address of a tenant, or NATS; the tenant has one more bucket for all of its senders, so that many
addresses help little. A tenant's turns refill its own bucket too, one token each: so a tenant with
many users is not mistaken for a flood before the first outcomes are known.

A new bucket is a quarter full, so that a flood costs little before it is detected. No sender is
refused for ever: buckets also refill with time. Outcomes that a restarted tracker has lost are
refunded.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from shared.errors import HintsThrottled, MalformedMessage
from shared.ids import TenantId
from shared.wire.messages import HintsEnded, HintVerdict, Throttled
from shared.wire.tracker_shards import TRACKER_SHARDS_MAX

USED_GAIN = 4.0
TAKEN_BACK_GAIN = 0.5
TURN_GAIN = 1.0  # to its tenant: a sender that pays for each advisory with a turn costs little more
REFUND_GAIN = 0.75  # of one that only repeated a known turn, or that no tracker took
FIRST_SHARE = 0.25  # of a bucket, for an unknown sender
TAKE_BACK_COST = 0.25  # of withdrawing one, whether it exists or not
PLACE_PER_S = 1.0
TENANT_PER_S = 8.0
ACCOUNTS_MAX = 16_384
PROVEN_USED = 8.0  # recently used ones of a proven sender, whose share of used ones is half or more
KEPT = 0.98  # decay of a sender's counts with each outcome
THROTTLED_NS = 10_000_000_000  # how long it is listed as throttled after a refusal
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HintLimits:
    """Attributes:
    per_place: tokens of one sender; 0: no limit.
    per_tenant: tokens of all senders of a tenant; 0: no limit.
    """

    per_place: int = 2048
    per_tenant: int = 8192


@dataclass(slots=True)
class _Account:
    """Attributes:
    open_at: tokens of advisories whose outcome is not reported yet, by the tracker shard that
        will report it.
    used, ended: recent counts; older ones weigh less.
    """

    tokens: float
    at_ns: int
    open_at: dict[int, float] = field(default_factory=dict)
    used: float = 0.0
    ended: float = 0.0
    num_refused: int = 0
    refused_at_ns: int = 0

    @property
    def open(self) -> float:
        """Open tokens of all shards."""
        return sum(self.open_at.values())

    def settle(self, shard: int, num: float) -> None:
        """Count so many of a shard's open tokens as settled."""
        if (left := self.open_at.get(shard, 0.0) - num) > 0:
            self.open_at[shard] = left
        else:
            self.open_at.pop(shard, None)

    @property
    def is_proven(self) -> bool:
        return self.used >= PROVEN_USED and self.used >= self.ended / 2


class _Accounts:
    """Accounts of senders, or of tenants. Above the limit the least recently used one of the tenant
    with the most is forgotten, so that many addresses of one tenant do not evict others'.
    """

    def __init__(self, size: int, per_s: float) -> None:
        self.size = size
        self.per_s = per_s
        self.of: OrderedDict[tuple[TenantId, str], _Account] = OrderedDict()
        self._of_tenant: dict[TenantId, OrderedDict[str, None]] = {}  # least recently used first

    def at(self, key: tuple[TenantId, str], now_ns: int) -> _Account:
        """The account, refilled up to now."""
        account = self.of.get(key)
        if account is None:
            account = self.of[key] = _Account(self.size * FIRST_SHARE, now_ns)
            self._of_tenant.setdefault(key[0], OrderedDict())[key[1]] = None
            if len(self.of) > ACCOUNTS_MAX:
                self._forget(key[0])
        else:
            self.of.move_to_end(key)
            self._of_tenant[key[0]].move_to_end(key[1])
        passed_s = max(now_ns - account.at_ns, 0) / 1e9
        self._gain(account, passed_s * self.per_s)
        account.at_ns = now_ns
        return account

    def sent(self, key: tuple[TenantId, str], shard: int) -> None:
        """Count an advisory whose outcome this shard will report."""
        if (account := self.of.get(key)) is not None:
            account.open_at[shard] = account.open_at.get(shard, 0.0) + 1.0

    def gain(self, key: tuple[TenantId, str], tokens: float, now_ns: int) -> None:
        """Add tokens."""
        self._gain(self.at(key, now_ns), tokens)

    def settle(self, key: tuple[TenantId, str], verdict: HintVerdict, shard: int) -> None:
        """Apply outcomes; those of a forgotten account are ignored."""
        account = self.of.get(key)
        if account is None:
            return
        num_used, num_ended = verdict.num_used, _num_ended(verdict)
        account.settle(shard, num_ended)
        kept = KEPT**num_ended
        account.used = account.used * kept + num_used
        account.ended = account.ended * kept + num_ended
        self._gain(account, USED_GAIN * num_used + TAKEN_BACK_GAIN * verdict.num_taken_back)

    def refund(self, key: tuple[TenantId, str], shard: int) -> None:
        """Refund an advisory whose outcome will not be reported."""
        if (account := self.of.get(key)) is not None:
            account.settle(shard, 1.0)
            self._gain(account, REFUND_GAIN)

    def refund_all(self, shard: int) -> None:
        """Refund all open advisories of a shard: their outcomes are lost."""
        for account in self.of.values():
            self._gain(account, account.open_at.pop(shard, 0.0))

    def _forget(self, newcomer: TenantId) -> None:
        """Forget one account, to make room for a new one."""
        tenants = self._of_tenant
        if len(self.of) == len(tenants):  # one each
            tenant = next(iter(self.of))[0]
        elif len(tenants[newcomer]) * len(tenants) > 2 * len(self.of):  # avoids a search
            tenant = newcomer
        else:
            tenant = max(tenants, key=lambda each: len(tenants[each]))
        place, _ = tenants[tenant].popitem(last=False)
        del self.of[tenant, place]
        if not tenants[tenant]:
            del tenants[tenant]

    def _gain(self, account: _Account, tokens: float) -> None:
        account.tokens = min(account.tokens + tokens, float(self.size))


class HintAccounts:
    """The accounts of all senders of one service."""

    def __init__(self, limits: HintLimits) -> None:
        self._places = _Accounts(limits.per_place, PLACE_PER_S)
        self._tenants = _Accounts(limits.per_tenant, TENANT_PER_S)
        self._tracker_ids: dict[int, str] = {}  # by shard

    def take(self, tenant: TenantId, place: str, now_ns: int, cost: float = 1.0) -> None:
        """Charge an advisory.

        Args:
            cost: `TAKE_BACK_COST` for a withdrawal.

        Raises:
            HintsThrottled: too many of the sender's were unused, or too many of its tenant's and
                the sender is not proven.
        """
        of_place = self._places.at((tenant, place), now_ns)
        of_tenant = self._tenants.at((tenant, ""), now_ns)
        if self._places.size and of_place.tokens < cost:
            raise _refuse(self._places, of_place, cost, now_ns, f"from {place or 'here'}")
        is_known = self._places.size > 0 and of_place.is_proven
        if self._tenants.size and of_tenant.tokens < cost and not is_known:
            raise _refuse(self._tenants, of_tenant, cost, now_ns, "of this tenant")
        for account in (of_place, of_tenant):
            account.tokens = max(account.tokens - cost, 0.0)

    def on_turn(self, tenant: TenantId, now_ns: int) -> None:
        """Credit the tenant for a turn, announced or not."""
        self._tenants.gain((tenant, ""), TURN_GAIN, now_ns)

    def on_sent(self, tenant: TenantId, place: str, shard: int = 0) -> None:
        """Count a charged advisory as sent to this shard of the tracker."""
        self._places.sent((tenant, place), shard)
        self._tenants.sent((tenant, ""), shard)

    def on_refund(self, tenant: TenantId, place: str, shard: int = 0) -> None:
        """Refund an advisory that repeated a known turn, or was not taken."""
        self._places.refund((tenant, place), shard)
        self._tenants.refund((tenant, ""), shard)

    def on_ended(self, ended: HintsEnded) -> None:
        """Apply outcomes that a shard of the tracker reports.

        Raises:
            MalformedMessage: the shard number is invalid.
        """
        shard = ended.shard
        if not 0 <= shard < TRACKER_SHARDS_MAX:
            raise MalformedMessage(f"HintsEnded: shard {shard} is out of range", "shard")
        before = self._tracker_ids.get(shard)
        self._tracker_ids[shard] = ended.tracker_id
        if before not in (None, ended.tracker_id):
            self._places.refund_all(shard)
            self._tenants.refund_all(shard)
        self.on_verdicts(ended.verdicts, shard)

    def on_verdicts(self, verdicts: Sequence[HintVerdict], shard: int = 0) -> None:
        """Apply outcomes."""
        for verdict in verdicts:
            self._places.settle((verdict.tenant, verdict.place), verdict, shard)
            self._tenants.settle((verdict.tenant, ""), verdict, shard)

    def throttled(self, now_ns: int) -> list[Throttled]:
        """Recently refused senders, the most often refused first."""
        found = [
            Throttled(
                tenant=tenant,
                place=place,
                retry_after_s=round(_wait_s(kind, account, 1.0), 1),
                num_refused=account.num_refused,
            )
            for kind in (self._tenants, self._places)
            for (tenant, place), account in kind.of.items()
            if account.num_refused and now_ns - account.refused_at_ns < THROTTLED_NS
        ]
        return sorted(found, key=lambda each: -each.num_refused)[:SHOWN_MAX]


def _refuse(
    kind: _Accounts, account: _Account, cost: float, now_ns: int, source: str
) -> HintsThrottled:
    if now_ns - account.refused_at_ns >= THROTTLED_NS:
        account.num_refused = 0
    account.num_refused += 1
    account.refused_at_ns = now_ns
    return HintsThrottled(
        f"too many advisories {source} were not used: send fewer, or only those whose turns come",
        retry_after_s=ceil(_wait_s(kind, account, cost)),
    )


def _wait_s(kind: _Accounts, account: _Account, cost: float) -> float:
    return max(cost - account.tokens, 0.0) / kind.per_s


def _num_ended(verdict: HintVerdict) -> int:
    return verdict.num_used + verdict.num_taken_back + verdict.num_spurious
