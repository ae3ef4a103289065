"""What earlier advisories teach: the chance and the time of a turn, and whose order proves what."""

from random import Random

import pytest

from services.tracker.core import Count, Expect, Limits, ObserveLead, SendVerdicts, levels
from services.tracker.core.leads import Leads
from services.tracker.core.levels import HintSource, Levels
from services.tracker.core.outcomes import DOUBTFUL_CHANCE, FIRST_CHANCE, Outcomes
from shared.effects import WakeAt
from shared.errors import HintsThrottled
from shared.ids import DEFAULT_TENANT, FrontendId, SessionId, TenantId
from shared.wire.hint_accounts import HintLimits, session_name
from shared.wire.messages import Advisory, HintVerdict
from tests.tables import largest_table
from tests.unit.tracker.core.test_tracker import SECOND, Driver, asks, counts, drops

T = TenantId("t")
HOUR = 3600 * SECOND
NAME = session_name(DEFAULT_TENANT, SessionId("s"))


def whose(session: str = "s", application: str = "app", tenant: str = "t") -> HintSource:
    return HintSource(TenantId(tenant), application, SessionId(session))


def test_the_narrow_level_speaks_where_it_knows_enough_else_the_broader_one() -> None:
    outcomes = Outcomes()
    assert outcomes.chance(whose(), 0) == FIRST_CHANCE
    for number in range(40):
        outcomes.learn(whose(f"bad{number}", "bad"), 0, is_used=False)
        outcomes.learn(whose(f"good{number}", "good"), 0, is_used=True)
    assert outcomes.chance(whose("new", "bad"), 0) < 0.1
    assert outcomes.chance(whose("new", "good"), 0) > 0.9
    assert 0.4 < outcomes.chance(whose("new", "new"), 0) < 0.6, "the tenant's"
    assert outcomes.chance(whose("new", "bad", "other"), 0) == FIRST_CHANCE
    for _ in range(12):
        outcomes.learn(whose("own", "bad"), 0, is_used=True)
    assert outcomes.chance(whose("own", "bad"), 0) > 0.7
    assert outcomes.chance(whose("new", "bad"), 10 * HOUR) > 0.8, "it is long ago"


def test_a_few_sessions_that_are_always_wrong_say_little_about_the_others() -> None:
    outcomes = Outcomes()
    for number in range(20):
        outcomes.learn(whose(f"right{number}"), 0, is_used=True)
    for number in range(6_000):
        outcomes.learn(whose(f"wrong{number % 6}"), 0, is_used=False)
        outcomes.learn(whose(f"invented{number}")._replace(has_kv=False), 0, is_used=False)
    assert outcomes.chance(whose("wrong0"), 0) < 0.01
    assert outcomes.chance(whose("right0"), 0) > 0.4 and outcomes.chance(whose("new"), 0) > 0.2
    assert outcomes.chance(whose("new")._replace(has_kv=False), 0) < 0.01
    ((_, hits, num),) = outcomes.rates(0)
    assert num == 12_020 and round(hits * num) == 20


def test_without_tenants_a_session_with_kv_answers_for_itself() -> None:
    outcomes = Outcomes()
    for number in range(1000):
        outcomes.learn(whose(f"wrong{number}", tenant=DEFAULT_TENANT), 0, is_used=False)
    new, wrong = whose("new", tenant=DEFAULT_TENANT), whose("wrong", tenant=DEFAULT_TENANT)
    assert outcomes.chance(new, 0) == DOUBTFUL_CHANCE
    assert outcomes.chance(new._replace(has_kv=False), 0) < 0.01
    for _ in range(8):
        assert outcomes.chance(wrong, 0) > Limits().act_chance_min
        outcomes.learn(wrong, 0, is_used=False)
    outcomes.learn(wrong, 0, is_used=False)
    assert outcomes.chance(wrong, 0) < Limits().act_chance_min
    outcomes.learn(whose("theirs", tenant="acme"), 0, is_used=True)
    assert outcomes.chance(new, 0) < 0.01, "there are tenants, who have it to themselves"


def test_tables_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "SESSIONS_MAX", 5)
    table = Levels(SECOND)
    for number in range(20):
        table.add(whose(f"s{number}"), 1.0, 0.0, 0)
    assert largest_table(table) == 5
    assert [sums.num for sums in table.read(whose("s0"), 0)] == [20, 20], "it was forgotten"


def test_leads_are_learned_as_they_are_spread() -> None:
    rng, leads = Random(1), Leads()
    assert leads.expected(whose(), 0) is None
    seen = [rng.lognormvariate(2.0, 0.5) for _ in range(500)]
    for number, lead_s in enumerate(seen):
        leads.learn(whose(f"s{number}"), lead_s, 0)
    found = leads.expected(whose("new"), 0)
    assert found is not None
    assert 0.01 < sum(lead_s < found.early_s for lead_s in seen) / 500 < 0.04
    assert sum(lead_s > found.late_s for lead_s in seen) / 500 < 0.02
    for _ in range(50):
        leads.learn(whose("slow"), 60.0, 0)
    slow = leads.expected(whose("slow"), 0)
    assert slow is not None and slow.late_s > 60 > found.late_s
    assert leads.expected(whose("new", tenant="other"), 0) is None


def hint(d: Driver, session: str, **fields: object) -> list[str]:
    advisory = Advisory(session_id=SessionId(session), **fields)  # type: ignore[arg-type]
    return counts(d.core.on_submit(advisory, d.now_ns)[1])


def test_who_is_mostly_wrong_is_tracked_until_its_turns_come_again() -> None:
    d = Driver()
    for number in range(60):
        hint(d, f"x{number}", agent="spammer")
    d.wake(61)
    effects = d.core.on_submit(Advisory(session_id=SessionId("s"), agent="spammer"), d.now_ns)[1]
    assert counts(effects) == ["tracked"] and not asks(effects)
    record = d.get()
    assert not record.is_acted_on and record.chance < 0.1
    assert not asks(d.wake(30)), "nobody is asked later either"
    effects = d.arrive()
    assert counts(effects) == ["tracked_used"] and not drops(effects)
    assert d.get().state == "late"
    hint(d, "s2", agent="spammer")
    assert counts(d.wake(70)) == ["tracked_expired"]
    for number in range(20):
        hint(d, f"y{number}", agent="spammer")
        d.arrive(f"y{number}")
    assert hint(d, "s", agent="spammer") == ["submitted"] and d.get().is_acted_on
    assert hint(d, "s3", agent="other") == ["submitted"]


def test_an_expiry_and_an_arrival_follow_what_was_seen() -> None:
    d = Driver()
    for number in range(40):
        d.submit(f"x{number}")
        d.now_ns += 10 * SECOND
        (lead,) = [e for e in d.arrive(f"x{number}") if isinstance(e, ObserveLead)]
        assert lead.seconds == 10
    (ask,) = [e.message for e in d.submit() if isinstance(e, Expect)]
    assert 7 < ask.arrives_in_ns / SECOND < 10 < ask.expires_in_ns / SECOND < 14
    d.now_ns += 5 * SECOND
    d.placed()
    assert asks(d.submit()) == [], "saying it again puts nothing off"
    assert d.get().arrives_at_ns < d.now_ns + 5 * SECOND
    (said,) = [e.message for e in d.submit("said", arrival=50) if isinstance(e, Expect)]
    assert (said.arrives_in_ns, said.expires_in_ns) == (50 * SECOND, 80 * SECOND)


def test_turns_that_come_after_all_lengthen_the_expiry() -> None:
    d = Driver(Limits(ttl_ns=20 * SECOND))
    ends = []
    for number in range(25):
        d.submit(f"x{number}")
        d.wake(30)
        ends += counts(d.arrive(f"x{number}"))
        assert not [e for e in d.arrive(f"x{number}") if isinstance(e, ObserveLead)], "once"
    assert ends == ["missed"] * 21 + ["late"] * 4


def test_a_ttl_of_its_own_and_names_are_kept() -> None:
    d = Driver()
    hint(d, "s", ttl_ms=1500, agent="qa", workflow_id="w1")
    record = d.get()
    assert (record.origin.agent, record.origin.workflow_id) == ("qa", "w1")
    assert record.expires_at_ns == d.now_ns + 1_500_000_000
    hint(d, "s", ttl_ms=500)
    assert (d.get().origin.agent, d.get().expires_at_ns) == ("qa", d.now_ns + 1_500_000_000)
    assert counts(d.wake(1.5)) == ["expired"]


def test_a_later_turn_of_an_ordered_sender_proves_the_earlier_hints_wrong() -> None:
    d = Driver()
    for session in ("a", "b", "c"):
        hint(d, session, ordered=True, workflow_id="w")
    hint(d, "elsewhere", ordered=True, workflow_id="v")
    hint(d, "unordered")
    effects = d.arrive("b")
    assert counts(effects) == ["late", "overtaken"] and drops(effects) == 2
    assert [d.get(session).state for session in ("a", "c", "elsewhere", "unordered")] == [
        "overtaken", "expected", "expected", "expected",
    ]  # fmt: skip
    assert counts(d.arrive("a")) == ["missed"]
    assert counts(d.arrive("c")) == ["late"]


def test_an_announcement_again_is_as_late_as_its_last_word() -> None:
    d = Driver()
    for session in ("a", "b", "a"):
        hint(d, session, ordered=True)
    assert counts(d.arrive("b")) == ["late"], "a was announced after it, too"
    hint(d, "c", ordered=True)
    hint(d, "a")
    assert counts(d.arrive("c")) == ["late"], "somebody expects a who knows no order"
    d.wake(100)
    assert not len(d.core._order)


def test_the_frontend_that_took_them_is_told_what_became_of_them() -> None:
    d = Driver()
    fields = {"frontend_id": FrontendId("f"), "place": "p"}
    for session in ("used", "back", "never", "after all"):
        hint(d, session, **fields)
    hint(d, "nobody's")
    d.arrive("used")
    d.invalidate("back")
    d.arrive("nobody's")
    assert not [e for e in d.wake(0.1) if isinstance(e, SendVerdicts)], "some are gathered"
    told = [e for e in d.wake(0.2) if isinstance(e, SendVerdicts)]
    assert [e.frontend_id for e in told] == ["f"]
    (verdict,) = told[0].message.verdicts
    assert verdict.place == "p" and (verdict.num_used, verdict.num_taken_back) == (1, 1)
    assert not [e for e in d.wake(1) if isinstance(e, SendVerdicts)]
    d.wake(60)
    d.arrive("after all")
    (told_later,) = [e for e in d.wake(1) if isinstance(e, SendVerdicts)]
    assert told_later.message.verdicts == [
        HintVerdict(tenant=verdict.tenant, place="p", num_used=1, num_spurious=2)
    ]


def test_who_comes_past_the_frontends_has_an_account_here() -> None:
    d = Driver(Limits(accounts=HintLimits(per_place=20, per_tenant=100)))
    for number in range(5):
        hint(d, f"x{number}")
    with pytest.raises(Exception, match="from nats were not used"):
        hint(d, "s")
    hint(d, "s", frontend_id=FrontendId("f"))
    assert d.core.status(d.now_ns).throttled[0].place == "nats"
    d.arrive("x1")
    assert [hint(d, f"y{number}") for number in range(4)] == [["submitted"]] * 4
    (rate,) = d.core.status(d.now_ns).rates
    assert rate.hits == 1 and Count("late") not in d.wake(100)


def test_past_the_frontends_a_session_that_had_a_turn_pays_for_itself_as_well() -> None:
    d = Driver(Limits(accounts=HintLimits(per_place=20, per_tenant=100)))
    for number in range(5):
        hint(d, f"x{number}")
    d.arrive("s")
    assert hint(d, "s") == ["submitted"]
    with pytest.raises(HintsThrottled):
        hint(d, "other")
    d.wake(100)
    account = d.core._learned._accounts._sessions.of[DEFAULT_TENANT, NAME]
    assert (account.used, account.ended) == (0, 1), "its outcome is its own"


def test_many_that_are_overtaken_are_given_up_a_bit_at_a_time() -> None:
    d = Driver(Limits(accounts=HintLimits(per_place=0, per_tenant=0)))
    for number in range(300):
        hint(d, f"s{number}", ordered=True)
    hint(d, "last", ordered=True)
    hint(d, "later", ordered=True)
    effects = d.arrive("last")
    assert counts(effects) == ["late"] + ["overtaken"] * 128
    assert WakeAt(d.now_ns) in effects, "for the others"
    hint(d, "s299")
    hint(d, "s298", ordered=True)
    assert counts(d.core.on_wake(d.now_ns)) == ["overtaken"] * 128
    assert counts(d.core.on_wake(d.now_ns)) == ["overtaken"] * 42, "but who was announced again"
    assert {key[1] for key in d.core._live} == {"later", "s298", "s299"}


def test_a_frontend_s_nats_is_not_the_tracker_s() -> None:
    d = Driver(Limits(accounts=HintLimits(per_place=40, per_tenant=0)))
    for number in range(10):
        hint(d, f"x{number}")
    for _ in range(8):
        hint(d, "s", frontend_id=FrontendId("f"), place="nats")
    with pytest.raises(HintsThrottled):
        hint(d, "y")
