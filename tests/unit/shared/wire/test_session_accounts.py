"""Accounts of sessions: one pays for its own unused advisories, and for nobody else's."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import HintsThrottled
from shared.ids import DEFAULT_TENANT, TenantId
from shared.wire import hint_accounts
from shared.wire.hint_accounts import SESSION_SIZE, HintAccounts, HintLimits, HintSender
from shared.wire.messages import HintVerdict
from tests.tables import largest_table

SECOND = 1_000_000_000
FIRST = SESSION_SIZE // 4
ACME = TenantId("acme")


class Gateway:
    """Advisories that all come from one address, each of which is over before the next one."""

    def __init__(self, limits: HintLimits, tenant: TenantId = DEFAULT_TENANT) -> None:
        self.accounts = HintAccounts(limits)
        self.tenant = tenant

    def hint(self, session: str, *, has_kv: bool = False, is_used: bool = False) -> bool:
        """Whether it is let in."""
        sender = HintSender(self.tenant, "gateway", session)
        try:
            payer = self.accounts.take(sender, SECOND, has_kv=has_kv)
        except HintsThrottled:
            return False
        self.accounts.on_sent(sender, payer)
        verdict = HintVerdict(
            tenant=self.tenant,
            place="gateway",
            session=session if payer == "session" else "",
            num_used=int(is_used),
            num_spurious=int(not is_used),
        )
        self.accounts.on_verdicts([verdict])
        return True

    def turn(self, session: str) -> None:
        self.accounts.on_turn(self.tenant, session, SECOND)

    def spend(self) -> int:
        """Use up what invented sessions may; how many advisories that is."""
        return sum(self.hint(f"invented-{number}") for number in range(10_000))


def test_invented_sessions_use_up_the_address_and_take_nothing_from_sessions_with_kv() -> None:
    gateway = Gateway(HintLimits(per_place=40, per_tenant=40))
    assert gateway.spend() == 10
    gateway.turn("had a turn")
    assert not gateway.hint("new", is_used=True)
    assert gateway.hint("had a turn") and gateway.hint("elsewhere", has_kv=True)
    assert gateway.hint("elsewhere"), "it is remembered"


def test_a_session_pays_for_itself_until_its_own_account_is_empty() -> None:
    gateway = Gateway(HintLimits(per_place=40, per_tenant=0))
    assert all(gateway.hint("liar", has_kv=True) for _ in range(FIRST))
    assert gateway.spend() == 10, "the address has paid for none of them"
    assert not gateway.hint("liar", has_kv=True)
    assert gateway.hint("other", has_kv=True)
    gateway.turn("liar")
    assert gateway.hint("liar", is_used=True)
    assert sum(gateway.hint("liar") for _ in range(20)) == 4, "what a used one returns"


def test_what_is_refunded_goes_back_to_the_payer() -> None:
    gateway = Gateway(HintLimits(per_place=40, per_tenant=40))
    sender = HintSender(DEFAULT_TENANT, "gateway", "s")
    for _ in range(4 * FIRST - 3):
        payer = gateway.accounts.take(sender, SECOND, has_kv=True)
        assert payer == "session"
        gateway.accounts.on_sent(sender, payer)
        gateway.accounts.on_refund(sender, payer)
    assert gateway.accounts.take(sender, SECOND) == "place"
    assert gateway.spend() == 9


def test_of_a_tenant_with_others_beside_it_sessions_need_the_tenant_s_account_too() -> None:
    alone = Gateway(HintLimits(per_place=0, per_tenant=40))
    assert alone.spend() == 10 and alone.hint("s", has_kv=True)
    alone.accounts.on_turn(ACME, "theirs", SECOND)
    assert not alone.hint("t", has_kv=True), "there are tenants"

    acme = Gateway(HintLimits(per_place=2000, per_tenant=40), ACME)
    sessions = [f"s{number}" for number in range(100)]
    assert sum(acme.hint(session, has_kv=True) for session in sessions) == 10
    acme.turn("right")
    assert acme.hint("right", is_used=True)
    assert acme.spend() == 4 and acme.hint("right"), "it is proven"


def test_a_proven_address_helps_its_sessions_against_the_tenant_s_limit_as_ever() -> None:
    acme = Gateway(HintLimits(per_place=2000, per_tenant=40), ACME)
    for number in range(9):
        assert acme.hint(f"s{number}", has_kv=True, is_used=True)
    for number in range(50):
        other = HintSender(ACME, "elsewhere", f"x{number}")
        try:
            acme.accounts.take(other, SECOND)
        except HintsThrottled:
            break
    assert acme.hint("new", has_kv=True)


@settings(deadline=None)
@given(
    num_honest=st.integers(1, 40),
    num_liars=st.integers(0, 40),
    num_invented=st.integers(0, 400),
    num_rounds=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_honest_sessions_behind_one_address_are_never_refused_and_liars_let_in_are_few(
    num_honest: int, num_liars: int, num_invented: int, num_rounds: int, seed: int
) -> None:
    """Three of four hints of honest ones are unused at first. Liars have KV; all theirs are."""
    gateway = Gateway(HintLimits(per_place=40, per_tenant=80))
    rng = Random(seed)
    num_lies = num_first = 0
    for number in range(num_rounds):
        steps = [("honest", each) for each in range(num_honest)]
        steps += [("liar", each) for each in range(num_liars) for _ in range(4)]
        steps += [("invented", each) for each in range(num_invented)]
        rng.shuffle(steps)
        for kind, each in steps:
            if kind == "honest":
                gateway.turn(f"honest-{each}")
                assert gateway.hint(f"honest-{each}", is_used=number % 4 == 3)
            elif kind == "liar":
                num_lies += gateway.hint(f"liar-{each}", has_kv=True)
            else:
                num_first += gateway.hint(f"invented-{number}-{each}")
    assert num_lies + num_first <= num_liars * FIRST + 10


def test_a_liar_that_is_forgotten_comes_back_with_what_it_had_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hint_accounts, "ACCOUNTS_MAX", 20)
    gateway = Gateway(HintLimits(per_place=40, per_tenant=40))
    gateway.spend()
    liars = [f"liar-{number}" for number in range(60)]
    let_in = sum(gateway.hint(liar, has_kv=True) for _ in range(100) for liar in liars)
    assert let_in <= 20 * FIRST, "of three times as many as there is room for"
    assert largest_table(gateway.accounts._sessions) == 20


def test_those_that_owe_nothing_are_forgotten_first_and_begin_again_as_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hint_accounts, "ACCOUNTS_MAX", 20)
    gateway = Gateway(HintLimits(per_place=40, per_tenant=40))
    gateway.spend()
    for number in range(6):
        assert all(gateway.hint(f"liar-{number}", has_kv=True) for _ in range(FIRST))
    for number in range(200):
        gateway.turn(f"honest-{number}")
        assert gateway.hint(f"honest-{number}", is_used=True)
    assert not any(gateway.hint(f"liar-{number}", has_kv=True) for number in range(6))


def test_another_tenant_s_debts_are_nobody_else_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_accounts, "ACCOUNTS_MAX", 20)
    accounts = HintAccounts(HintLimits(per_place=0, per_tenant=0))
    for number in range(20):
        for _ in range(FIRST):
            accounts.take(HintSender(ACME, "x", f"liar-{number}"), SECOND, has_kv=True)
    sender = HintSender(TenantId("other"), "y", "s")
    paid = [accounts.take(sender, SECOND, has_kv=True) for _ in range(FIRST + 1)]
    assert paid == ["session"] * FIRST + ["place"]
