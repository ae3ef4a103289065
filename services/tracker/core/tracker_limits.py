"""Numbers that bound and time the tracker's decisions."""

from dataclasses import dataclass, field, replace

from shared.wire.hint_accounts import HintLimits

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Durations in ns, bounds in entries.

    Attributes:
        ttl_ns: how long a turn of unknown arrival is expected.
        slack_ns: how long after its expected arrival a turn is still expected.
        retry_ns: when to ask again for a reservation that the scheduler did not grant.
        keep_ns: how long an ended advisory can still be read.
        advisories_max: advisories remembered; the oldest ended ones go first. At most a quarter of
            them are live ones that no client announced.
        tenant_advisories_max: live ones of any one tenant; 0: no limit.
        act_chance_min: advisories whose turns are less likely to come are only tracked, without
            prefetches.
        accounts: of senders that use NATS directly.
    """

    ttl_ns: int = 60 * SECOND_NS
    slack_ns: int = 30 * SECOND_NS
    retry_ns: int = SECOND_NS
    keep_ns: int = 600 * SECOND_NS
    advisories_max: int = 100_000
    tenant_advisories_max: int = 0
    act_chance_min: float = 0.1
    accounts: HintLimits = field(default_factory=HintLimits)

    def of_shard(self, num_shards: int) -> "Limits":
        """The limits of one of so many shards: its part, rounded up, of those per tenant and per
        sender. `advisories_max` is per process and stays.

        >>> Limits(tenant_advisories_max=10).of_shard(4).tenant_advisories_max
        3
        """
        accounts = HintLimits(
            per_place=-(-self.accounts.per_place // num_shards),
            per_tenant=-(-self.accounts.per_tenant // num_shards),
        )
        of_tenant = -(-self.tenant_advisories_max // num_shards)
        return replace(self, tenant_advisories_max=of_tenant, accounts=accounts)
