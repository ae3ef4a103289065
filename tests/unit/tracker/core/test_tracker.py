"""The life of advisories in the tracker core."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tracker.core import Count, Drop, Effect, Expect, Limits, Record, TrackerCore
from shared.effects import WakeAt
from shared.errors import InvalidRequest, NoCapacity, NotFound, TenantQuota
from shared.ids import DEFAULT_TENANT, HostId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.wire.hint_accounts import HintLimits
from shared.wire.messages import AdapterRef, Advisory, AdvisoryKey, TurnArrived
from shared.wire.messages.codec import encode

SECOND = 1_000_000_000
UNCOUNTED = HintLimits(per_place=0, per_tenant=0)


class Driver:
    """A core, the time, and short words."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.core = TrackerCore(limits or Limits())
        self.now_ns = SECOND
        self.num_turns = 0

    def submit(
        self,
        session: str = "s",
        *,
        arrival: float | None = None,
        priority: int = 1,
        model: str | None = None,
        tenant: TenantId = DEFAULT_TENANT,
        adapter: str | None = None,
        kv_at: dict[HostId, int] | None = None,
    ) -> list[Effect]:
        advisory = Advisory(
            session_id=SessionId(session),
            model_id=ModelId(model) if model else None,
            expected_arrival=arrival,
            priority=priority,
            tenant=tenant,
            adapter=AdapterRef(adapter_hash=adapter) if adapter else None,
            kv_at=kv_at or {},
        )
        return self.core.on_submit(advisory, self.now_ns)[1]

    def placed(self, session: str = "s", worker: str | None = "w1") -> list[Effect]:
        key = AdvisoryKey(session_id=SessionId(session))
        return self.core.on_placed(key, WorkerId(worker) if worker else None, self.now_ns)

    def arrive(self, session: str = "s", *, reserved: bool = False) -> list[Effect]:
        self.num_turns += 1
        turn_id = TurnId(f"t{self.num_turns}")
        arrived = TurnArrived(session_id=SessionId(session), turn_id=turn_id, reserved=reserved)
        return self.core.on_turn_arrived(arrived, self.now_ns)

    def invalidate(self, session: str = "s") -> list[Effect]:
        return self.core.on_invalidate(AdvisoryKey(session_id=SessionId(session)), self.now_ns)[1]

    def wake(self, after_s: float = 0) -> list[Effect]:
        self.now_ns += int(after_s * SECOND)
        effects = self.core.on_wake(self.now_ns)
        told = effects
        while any(isinstance(each, WakeAt) and each.at_ns <= self.now_ns for each in told):
            told = self.core.on_wake(self.now_ns)
            effects += told
        return effects

    def get(self, session: str = "s") -> Record:
        return self.core.get(AdvisoryKey(session_id=SessionId(session)))

    def num_timers(self) -> int:
        return len(self.core._timers)


def counts(effects: list[Effect]) -> list[str]:
    return [effect.outcome for effect in effects if isinstance(effect, Count)]


def asks(effects: list[Effect]) -> list[tuple[int, float]]:
    """Priority and expiry in seconds of every question to the scheduler."""
    return [
        (e.message.priority, e.message.expires_in_ns / SECOND)
        for e in effects
        if isinstance(e, Expect)
    ]


def drops(effects: list[Effect]) -> int:
    return sum(isinstance(effect, Drop) for effect in effects)


def test_where_the_session_s_kv_is_is_told_to_the_scheduler() -> None:
    d = Driver()
    many = {HostId(f"h{number}"): 1 for number in range(100)}
    (first,) = [e.message for e in d.submit(kv_at={HostId("a"): 3}) if isinstance(e, Expect)]
    assert first.kv_at == {"a": 3}
    d.placed()
    (again,) = [e.message for e in d.submit(kv_at=many, priority=2) if isinstance(e, Expect)]
    assert again.kv_at == dict(list(many.items())[:8]), "no more than anybody tells"
    d.placed()
    (third,) = [e.message for e in d.submit(priority=3) if isinstance(e, Expect)]
    assert third.kv_at == again.kv_at, "what could not be learnt takes nothing back"


def test_numbers_that_no_host_can_mean_go_no_further() -> None:
    wild = {HostId("a"): 10**30, HostId("b c"): 3, HostId("d"): -1, HostId("e"): 4}
    (ask,) = [e.message for e in Driver().submit(kv_at=wild) if isinstance(e, Expect)]
    assert ask.kv_at == {"e": 4} and encode(ask)


def test_an_advisory_is_placed_and_used() -> None:
    d = Driver()
    effects = d.submit()
    assert counts(effects) == ["submitted"]
    assert asks(effects) == [(1, 60.0)]
    assert d.get().state == "expected"
    d.placed()
    assert (d.get().state, d.get().worker_id) == ("placed", "w1")
    effects = d.arrive(reserved=True)
    assert counts(effects) == ["used"]
    assert drops(effects) == 0
    assert d.get().state == "used"


def test_a_turn_before_the_answer_makes_it_late_and_gives_the_place_back() -> None:
    d = Driver()
    d.submit()
    assert counts(d.arrive()) == ["late"]
    assert drops(d.placed()) == 1
    assert d.get().state == "late"


def test_a_turn_on_its_reservation_was_in_time_though_the_answer_is_on_its_way() -> None:
    d = Driver()
    d.submit()
    assert counts(d.arrive(reserved=True)) == ["used"]


def test_a_turn_without_advisory_is_missed() -> None:
    d = Driver()
    assert counts(d.arrive()) == ["missed"]
    d.submit()
    d.placed()
    d.arrive(reserved=True)
    assert counts(d.arrive()) == ["missed"], "one advisory, one turn"


def test_duplicates_merge() -> None:
    d = Driver()
    d.submit(arrival=50, priority=2)
    d.placed()
    d.now_ns += SECOND
    assert counts(d.submit(arrival=9, priority=1)) == ["merged"]
    record = d.get()
    assert (record.num_merged, record.priority) == (1, 2)
    assert record.expires_at_ns == 81 * SECOND


def test_a_raised_priority_is_told_at_once_a_later_expiry_in_good_time() -> None:
    d = Driver()
    d.submit()
    d.placed()
    d.now_ns += 10 * SECOND
    assert asks(d.submit()) == []
    assert asks(d.submit(priority=5)) == [(5, 60.0)]
    d.placed()
    d.now_ns += 10 * SECOND
    assert asks(d.submit()) == []
    assert asks(d.wake(48)) == []
    assert asks(d.wake(1)) == [(5, 11.0)]


def test_a_priority_raised_while_asking_is_told_after_the_answer() -> None:
    d = Driver()
    d.submit()
    assert asks(d.submit(priority=9)) == []
    assert asks(d.placed()) == [(9, 60.0)]


@pytest.mark.parametrize(("arrival", "lives_s"), [(None, 60), (100.0, 130), (0.0, 30)])
def test_an_advisory_expires(arrival: float | None, lives_s: int) -> None:
    d = Driver()
    d.submit(arrival=arrival)
    d.placed()
    assert counts(d.wake(lives_s - 1)) == []
    assert counts(d.wake(1)) == ["expired"]
    assert d.get().state == "expired"
    assert d.core.num_live == 0


def test_without_an_answer_the_place_is_asked_for_again() -> None:
    d = Driver()
    d.submit()
    d.placed(worker=None)
    assert d.get().state == "expected"
    assert asks(d.submit()) == [], "the next try is due in a second"
    assert asks(d.wake(1)) == [(1, 59.0)]
    assert asks(d.wake(5)) == [], "one question at a time"
    d.placed()
    assert d.get().state == "placed"


def test_invalidation_gives_the_place_back_once() -> None:
    d = Driver()
    d.submit()
    d.placed()
    effects = d.invalidate()
    assert (counts(effects), drops(effects)) == (["invalidated"], 1)
    effects = d.invalidate()
    assert (counts(effects), drops(effects)) == ([], 0)
    with pytest.raises(NotFound) as caught:
        d.invalidate("other")
    assert caught.value.code == "advisory_not_found"


def test_after_its_end_a_session_s_advisory_starts_afresh() -> None:
    d = Driver()
    d.submit(priority=9)
    d.invalidate()
    assert counts(d.submit()) == ["submitted"]
    assert (d.get().state, d.get().priority, d.get().num_merged) == ("expected", 1, 0)


def test_what_is_over_can_be_read_for_a_while() -> None:
    d = Driver(Limits(keep_ns=10 * SECOND, advisories_max=2))
    for session in "abc":
        d.submit(session, arrival=0)
        d.invalidate(session)
    with pytest.raises(NotFound):
        d.get("a")
    d.wake(9)
    assert d.get("b").state == "invalidated"
    d.wake(1)
    with pytest.raises(NotFound):
        d.get("b")


def test_live_advisories_are_bounded() -> None:
    d = Driver(Limits(advisories_max=1))
    d.submit("a")
    with pytest.raises(NoCapacity):
        d.submit("b")
    assert counts(d.submit("a")) == ["merged"]


def test_sessions_without_kv_leave_half_of_the_room_to_those_with_kv() -> None:
    d, here = Driver(Limits(advisories_max=8)), {HostId("h"): 1}
    d.submit("with KV", kv_at=here)
    for number in range(4):
        d.submit(f"invented {number}")
    with pytest.raises(NoCapacity):
        d.submit("invented")
    d.submit("invented 0", kv_at=here)
    for number in range(3):
        d.submit(f"more {number}", kv_at=here)
    with pytest.raises(NoCapacity):
        d.submit("one more", kv_at=here)
    d.invalidate("invented 0")
    assert counts(d.submit("invented")) == ["submitted"]
    d.wake(1000)
    assert not d.core._live_limits._unknown


def test_a_tenant_has_so_many_live_and_the_others_theirs() -> None:
    d = Driver(Limits(tenant_advisories_max=2, advisories_max=8, ttl_ns=10 * SECOND))
    other = TenantId("other")
    d.submit("a")
    d.submit("b")
    for _ in range(2):
        with pytest.raises(TenantQuota) as refused:
            d.submit("c")
        assert (refused.value.code, refused.value.http_status) == ("tenant_quota", 429)
    assert counts(d.submit("a")) == ["merged"]
    assert counts(d.submit("c", tenant=other)) == ["submitted"]
    d.invalidate("a")
    assert counts(d.submit("c")) == ["submitted"]
    d.arrive("b")
    assert counts(d.submit("b")) == ["submitted"]
    d.wake(10)
    assert d.core.num_live == 0
    for session in "ab":
        assert counts(d.submit(session)) == ["submitted"]
    for session in "ab":
        d.invalidate(session)
    assert not d.core._live_limits._num_of, "a tenant without any is not remembered"


@pytest.mark.parametrize(
    ("advisory", "param"),
    [
        (Advisory(session_id=SessionId("")), "session_id"),
        (Advisory(session_id=SessionId("x" * 257)), "session_id"),
        (Advisory(session_id=SessionId("s"), priority=10), "priority"),
        (Advisory(session_id=SessionId("s"), priority=-1), "priority"),
        (Advisory(session_id=SessionId("s"), expected_arrival=-0.1), "expected_arrival"),
        (Advisory(session_id=SessionId("s"), expected_arrival=float("nan")), "expected_arrival"),
        (Advisory(session_id=SessionId("s"), expected_arrival=86_401.0), "expected_arrival"),
    ],
)
def test_a_wrong_field_is_named(advisory: Advisory, param: str) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        TrackerCore(Limits()).on_submit(advisory, 0)
    assert caught.value.param == param


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "placed", "unplaced", "arrive", "invalidate", "wake"]),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_every_life_ends_once_and_nothing_stays(script: list[tuple[str, int]]) -> None:
    d = Driver()
    effects: list[Effect] = []
    for what, number in script:
        session = f"s{number}"
        if what == "submit":
            effects += d.submit(session, priority=number)
        elif what in ("placed", "unplaced"):
            effects += d.placed(session, "w1" if what == "placed" else None)
        elif what == "arrive":
            effects += d.arrive(session)
        elif what == "invalidate":
            try:
                effects += d.invalidate(session)
            except NotFound:
                continue
        else:
            effects += d.wake(number * 20)
    while wakes := [e for e in d.wake() if isinstance(e, WakeAt)]:
        d.now_ns = max(d.now_ns, wakes[-1].at_ns)
        late = d.core.on_wake(d.now_ns)
        for expect in [e for e in late if isinstance(e, Expect)]:
            late += d.placed(expect.message.session_id, None)
        effects += late
    outcomes = counts(effects)
    ended = [o for o in outcomes if o in ("used", "late", "expired", "invalidated")]
    assert len(ended) == outcomes.count("submitted")
    assert d.core.num_live == 0


def test_timers_are_bounded_by_what_is_remembered() -> None:
    driver = Driver(Limits(accounts=UNCOUNTED))
    driver.submit("kept", arrival=5)
    for _ in range(10_000):
        driver.submit()
        driver.invalidate()
    assert driver.num_timers() < 2000
    driver.wake(5 + 31)
    assert driver.get("kept").state == "expired", "its timer was kept"
    assert driver.get().state == "invalidated"
    driver.wake(600)
    with pytest.raises(NotFound):
        driver.get()


def test_the_adapter_goes_to_the_scheduler_and_changes_with_the_model() -> None:
    def asked(effects: list[Effect]) -> list[tuple[str | None, str]]:
        return [
            (e.message.model_id, e.message.adapter.adapter_hash if e.message.adapter else "")
            for e in effects
            if isinstance(e, Expect)
        ]

    d = Driver()
    assert asked(d.submit(model="m", adapter="a")) == [("m", "a")]
    d.placed()
    assert asked(d.submit()) == [], "nothing new is said"
    assert asked(d.submit(model="m", adapter="b")) == [("m", "b")]
    d.placed()
    assert asked(d.submit(model="m")) == [("m", "")]
    d.placed()
    assert asked(d.submit(model="m")) == []


def arrivals(effects: list[Effect]) -> list[float]:
    """When the scheduler is told that turns are expected, seconds from then."""
    return [e.message.arrives_in_ns / SECOND for e in effects if isinstance(e, Expect)]


def test_the_scheduler_is_told_when_a_turn_is_expected() -> None:
    driver = Driver()
    assert arrivals(driver.submit(arrival=30)) == [30]
    driver.placed()
    assert arrivals(driver.submit(arrival=30.5)) == [], "nearly the same"
    assert arrivals(driver.submit(arrival=20)) == [20]
    driver.placed()
    driver.now_ns += 5 * SECOND
    assert arrivals(driver.submit(arrival=40, priority=2)) == [15], "the earlier one counts"
    driver.placed()
    assert arrivals(driver.submit()) == [0], "at any time"


def test_what_is_due_at_once_is_seen_to_a_bit_at_a_time() -> None:
    d = Driver(Limits(accounts=UNCOUNTED))
    for number in range(300):
        d.submit(f"s{number}")
    ends = []
    d.now_ns += 61 * SECOND
    for num_left in (172, 44, 0):
        effects = d.core.on_wake(d.now_ns)
        ends += counts(effects)
        assert d.core.num_live == num_left
        (wake,) = [each for each in effects if isinstance(each, WakeAt)]
        assert (wake.at_ns <= d.now_ns) == (num_left > 0), "the others have their turn between"
    assert ends == ["expired"] * 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_id", "m" * 257),
        ("request_id", "r" * 257),
        ("tenant", "t" * 201),
        ("place", "p" * 257),
        ("frontend_id", "a b"),
        ("frontend_id", "f" * 65),
        ("adapter", AdapterRef(adapter_hash="a" * 257)),
        ("adapter", AdapterRef(adapter_hash="a", ranks={str(rank): 1 for rank in range(257)})),
    ],
)
def test_what_is_kept_has_a_length(field: str, value: object) -> None:
    d = Driver()
    advisory = Advisory(session_id=SessionId("s"), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as refusal:
        d.core.on_submit(advisory, d.now_ns)
    assert refusal.value.param == field and d.core.num_live == 0
