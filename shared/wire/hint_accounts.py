"""Rate limits of advisories by their outcomes: token buckets that used advisories refill.

An advisory costs one token. One whose turn comes returns several, one that its sender withdraws
returns half, an unused one none. So a sender that is right at least once in `USED_GAIN` times has
no limit.

The session pays first. One that had a turn, or has KV, has a bucket of its own, so that any number
of users can share an address, a gateway's, and are not charged for each other's unused advisories.
An invented session has none: there, and where a session's is empty, the address pays, or NATS. It
may send the content of a bucket and then a few per second. The tenant has one more bucket for all
of its sessions and addresses, so that many of them help little against other tenants. Where there
are no tenants, a session that pays needs nothing of it. A tenant's turns refill its bucket too, one
token each: so a tenant with many users is not mistaken for a flood before the first outcomes are
known.

A new bucket is a quarter full, so that a flood costs little before it is detected. No sender is
refused for ever: buckets of addresses and tenants also refill with time. Outcomes that a restarted
tracker has lost are refunded.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from shared.errors import HintsThrottled, MalformedMessage
from shared.ids import DEFAULT_TENANT, SessionId, TenantId
from shared.owners import owner_key
from shared.wire.messages import HintPayer, HintsEnded, HintVerdict, Throttled
from shared.wire.tracker_shards import TRACKER_SHARDS_MAX

USED_GAIN = 4.0
TAKEN_BACK_GAIN = 0.5
TURN_GAIN = 1.0  # to its session and tenant: one that pays with turns costs little more than those
REFUND_GAIN = 0.75  # of one that only repeated a known turn, or that no tracker took
FIRST_SHARE = 0.25  # of a bucket, for an unknown sender
TAKE_BACK_COST = 0.25  # of withdrawing one, whether it exists or not
SESSION_SIZE = 64
PLACE_PER_S = 1.0
TENANT_PER_S = 8.0
ACCOUNTS_MAX = 16_384  # of each kind
SPARED_MAX = 8  # sessions in debt that are kept while another one is looked for to be forgotten
PROVEN_USED = 8.0  # recently used ones of a proven sender, whose share of used ones is half or more
PROVEN_USED_OF_SESSION = 0.5  # one of the last few
KEPT = 0.98  # decay of a sender's counts with each outcome
THROTTLED_NS = 10_000_000_000  # how long it is listed as throttled after a refusal
SHOWN_MAX = 20


class HintSender(NamedTuple):
    """Attributes:
    place: its address, or network, or NATS.
    session: whose turn is announced, as in `session_name`.
    """

    tenant: TenantId
    place: str
    session: str


def session_name(tenant: TenantId, session_id: SessionId) -> str:
    """A session in accounts and on the wire: of any id, in 32 characters."""
    return owner_key(tenant, session_id).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class HintLimits:
    """Attributes:
    per_place: tokens of one address; 0: no limit.
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

    def see(self, verdict: HintVerdict) -> None:
        """Count outcomes."""
        kept = KEPT ** _num_ended(verdict)
        self.used = self.used * kept + verdict.num_used
        self.ended = self.ended * kept + _num_ended(verdict)


class _Accounts:
    """Accounts of sessions, of addresses, or of tenants. Above the limit the least recently used
    one of the tenant with the most is forgotten, so that many addresses of one tenant do not evict
    others'.

    Args:
        proven_used: recently used advisories of a proven sender.
        keeps_debts: an account is not emptied by being forgotten: others, with as much as new ones
            have, are forgotten first, and else what was left is all that the new one gets.
    """

    def __init__(
        self, size: int, per_s: float, proven_used: float, *, keeps_debts: bool = False
    ) -> None:
        self.size = size
        self.per_s = per_s
        self._proven_used = proven_used
        self.keeps_debts = keeps_debts
        self.of: OrderedDict[tuple[TenantId, str], _Account] = OrderedDict()
        self._of_tenant: dict[TenantId, OrderedDict[str, None]] = {}  # least recently used first

    @property
    def num_tenants(self) -> int:
        """Tenants that have an account."""
        return len(self._of_tenant)

    def is_proven(self, account: _Account) -> bool:
        """Whether half or more of its recent advisories were used."""
        return account.used >= self._proven_used and account.used >= account.ended / 2

    def at(self, key: tuple[TenantId, str], now_ns: int) -> _Account:
        """The account, refilled up to now."""
        account = self.of.get(key)
        if account is None:
            first = self.size * FIRST_SHARE
            if len(self.of) >= ACCOUNTS_MAX:
                first = min(first, self._forget(key[0]))
            account = self.of[key] = _Account(first, now_ns)
            self._of_tenant.setdefault(key[0], OrderedDict())[key[1]] = None
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
        account.settle(shard, _num_ended(verdict))
        account.see(verdict)
        gain = USED_GAIN * verdict.num_used + TAKEN_BACK_GAIN * verdict.num_taken_back
        self._gain(account, gain)

    def refund(self, key: tuple[TenantId, str], shard: int) -> None:
        """Refund an advisory whose outcome will not be reported."""
        if (account := self.of.get(key)) is not None:
            account.settle(shard, 1.0)
            self._gain(account, REFUND_GAIN)

    def refund_all(self, shard: int) -> None:
        """Refund all open advisories of a shard: their outcomes are lost."""
        for account in self.of.values():
            self._gain(account, account.open_at.pop(shard, 0.0))

    def _forget(self, newcomer: TenantId) -> float:
        """Forget one account, to make room for a new one. Returns how much that may have."""
        tenants = self._of_tenant
        num_own = len(tenants.get(newcomer, ())) + 1
        if len(self.of) == len(tenants):  # one each
            tenant = newcomer if num_own > 1 else next(iter(self.of))[0]
        elif num_own * len(tenants) > 2 * len(self.of):  # avoids a search
            tenant = newcomer
        else:
            tenant = max(tenants, key=lambda each: len(tenants[each]))
        names = tenants[tenant]
        for _ in range(SPARED_MAX if self.keeps_debts else 0):
            name = next(iter(names))
            if self.of[tenant, name].tokens >= self.size * FIRST_SHARE:
                break
            names.move_to_end(name)
        name, _ = names.popitem(last=False)
        gone = self.of.pop((tenant, name))
        if not names:
            del tenants[tenant]
        return gone.tokens if self.keeps_debts and tenant == newcomer else float(self.size)

    def _gain(self, account: _Account, tokens: float) -> None:
        account.tokens = min(account.tokens + tokens, float(self.size))


class HintAccounts:
    """The accounts of all senders of one service."""

    def __init__(self, limits: HintLimits) -> None:
        self._sessions = _Accounts(SESSION_SIZE, 0.0, PROVEN_USED_OF_SESSION, keeps_debts=True)
        self._places = _Accounts(limits.per_place, PLACE_PER_S, PROVEN_USED)
        self._tenants = _Accounts(limits.per_tenant, TENANT_PER_S, PROVEN_USED)
        self._tracker_ids: dict[int, str] = {}  # by shard

    def take(
        self, sender: HintSender, now_ns: int, cost: float = 1.0, *, has_kv: bool = False
    ) -> HintPayer:
        """Charge an advisory. Returns who pays.

        Args:
            cost: `TAKE_BACK_COST` for a withdrawal.
            has_kv: the session is known to have KV.

        Raises:
            HintsThrottled: the session cannot pay and too many of the address' were unused, or too
                many of its tenant's and neither session nor address is proven.
        """
        tenant, place, session = sender
        is_proven = self._places.is_proven(self._places.at((tenant, place), now_ns))
        self._tenants.at((tenant, ""), now_ns)
        payer: HintPayer = "place"
        if has_kv or (tenant, session) in self._sessions.of:
            of_session = self._sessions.at((tenant, session), now_ns)
            if of_session.tokens >= cost:
                payer = "session"
                is_proven = is_proven or self._sessions.is_proven(of_session)
        charged = [(kind, kind.at(key, now_ns)) for kind, key in self._charged(sender, payer)]
        for kind, account in charged:
            is_spared = kind is self._tenants and is_proven and self._places.size > 0
            if kind.size and account.tokens < cost and not is_spared:
                source = "of this tenant" if kind is self._tenants else f"from {place or 'here'}"
                raise _refuse(kind, account, cost, now_ns, source)
        for _, account in charged:
            account.tokens = max(account.tokens - cost, 0.0)
        return payer

    def on_turn(self, tenant: TenantId, session: str, now_ns: int) -> None:
        """Credit a session and its tenant for a turn, announced or not."""
        self._sessions.gain((tenant, session), TURN_GAIN, now_ns)
        self._tenants.gain((tenant, ""), TURN_GAIN, now_ns)

    def on_sent(self, sender: HintSender, payer: HintPayer, shard: int = 0) -> None:
        """Count a charged advisory as sent to this shard of the tracker."""
        for kind, key in self._charged(sender, payer):
            kind.sent(key, shard)

    def on_refund(self, sender: HintSender, payer: HintPayer, shard: int = 0) -> None:
        """Refund an advisory that repeated a known turn, or was not taken."""
        for kind, key in self._charged(sender, payer):
            kind.refund(key, shard)

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
            for kind in (self._sessions, self._places, self._tenants):
                kind.refund_all(shard)
        self.on_verdicts(ended.verdicts, shard)

    def on_verdicts(self, verdicts: Sequence[HintVerdict], shard: int = 0) -> None:
        """Apply outcomes."""
        for verdict in verdicts:
            sender = HintSender(verdict.tenant, verdict.place, verdict.session)
            for kind, key in self._charged(sender, "session" if verdict.session else "place"):
                kind.settle(key, verdict, shard)
            if verdict.session and (of_place := self._places.of.get(sender[:2])) is not None:
                of_place.see(verdict)  # it proves the address, too

    def _charged(
        self, sender: HintSender, payer: HintPayer
    ) -> list[tuple[_Accounts, tuple[TenantId, str]]]:
        """The accounts that an advisory is charged to."""
        tenant = sender.tenant
        if payer == "place":
            return [(self._places, (tenant, sender.place)), (self._tenants, (tenant, ""))]
        of_session = self._sessions, (tenant, sender.session)
        if tenant == DEFAULT_TENANT and self._tenants.num_tenants <= 1:
            return [of_session]
        return [of_session, (self._tenants, (tenant, ""))]

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
