"""Which senders of advisories are throttled: not people who type and delete, and floods at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import merge
from random import Random
from typing import Literal

import pytest

from loadtest.workloads import registry
from loadtest.workloads.chats import Exchange, load_dialogues
from loadtest.workloads.open_loads import servegen
from loadtest.workloads.people import (
    DELETED_SHARE,
    SPREAD,
    TAKEN_BACK_SHARE,
    THINKING_S,
    load_speeds,
)
from services.tracker.core import Effect, Limits, SendVerdicts, TrackerCore
from shared.effects import WakeAt
from shared.errors import HintsThrottled, NotFound
from shared.ids import DEFAULT_TENANT, FrontendId, HostId, SessionId, TenantId, TurnId
from shared.wire.hint_accounts import HintAccounts, HintLimits, HintSender, session_name
from shared.wire.messages import Advisory, AdvisoryKey, TurnArrived

SECOND = 1_000_000_000
FRONTEND = FrontendId("f")
NUM_PEOPLE = 400
BEGIN_S = 120.0  # people come within that time
FLOOD_RATE = 10_000
LEFT_SHARE = 0.1  # of beginnings after which a person leaves
Act = Literal["hint", "take back", "turn"]
Event = tuple[float, str, str, Act]


class House:
    """A frontend's accounts and the tracker's core, with nothing between them and no delay.

    Args:
        by_tenant: those of every place are a tenant's; else all are of one tenant.
        one_address: they all come from one address.
    """

    def __init__(
        self,
        limits: HintLimits | None = None,
        *,
        by_tenant: bool = False,
        one_address: bool = False,
    ) -> None:
        self.by_tenant = by_tenant
        self.one_address = one_address
        self.accounts = HintAccounts(limits or HintLimits())
        self.tracker = TrackerCore(Limits(), tracker_id="life")
        self.num_turns = 0
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.not_acted_on: Counter[str] = Counter()
        self.first_refused_at_s: dict[str, float] = {}
        self._with_kv: set[SessionId] = set()
        self._wake_at_ns: int | None = None

    def do(self, at_s: float, place: str, session: str, act: Act) -> None:
        now_ns = int(at_s * SECOND)
        while self._wake_at_ns is not None and self._wake_at_ns <= now_ns:
            woken_at_ns, self._wake_at_ns = self._wake_at_ns, None
            self._perform(self.tracker.on_wake(woken_at_ns))
        session_id = SessionId(session)
        tenant = TenantId(place) if self.by_tenant else DEFAULT_TENANT
        if act == "turn":
            self.num_turns += 1
            self._with_kv.add(session_id)
            self.accounts.on_turn(tenant, session_name(tenant, session_id), now_ns)
            turn_id = TurnId(f"t{self.num_turns}")
            arrived = TurnArrived(session_id=session_id, turn_id=turn_id, tenant=tenant)
            self._perform(self.tracker.on_turn_arrived(arrived, now_ns))
        elif act == "take back":
            with suppress(NotFound):  # it was refused, or is over for long
                key = AdvisoryKey(session_id=session_id, tenant=tenant)
                self._perform(self.tracker.on_invalidate(key, now_ns)[1])
        else:
            self._hint(at_s, place, session_id, tenant, now_ns)

    def _hint(
        self, at_s: float, place: str, session_id: SessionId, tenant: TenantId, now_ns: int
    ) -> None:
        self.asked[place] += 1
        at = "gateway" if self.one_address else place
        sender = HintSender(tenant, at, session_name(tenant, session_id))
        try:
            payer = self.accounts.take(sender, now_ns)
        except HintsThrottled:
            self.refused[place] += 1
            self.first_refused_at_s.setdefault(place, at_s)
            return
        advisory = Advisory(
            session_id=session_id,
            tenant=tenant,
            place=at,
            payer=payer,
            frontend_id=FRONTEND,
            kv_at={HostId("h"): 1} if session_id in self._with_kv else {},
        )
        record, effects = self.tracker.on_submit(advisory, now_ns)
        self.not_acted_on[place] += not record.is_acted_on
        if record.num_merged:
            self.accounts.on_refund(sender, payer)
        self._perform(effects)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendVerdicts):
                self.accounts.on_ended(effect.message)
            elif isinstance(effect, WakeAt):
                self._wake_at_ns = effect.at_ns


def live(turns: Sequence[Exchange], rng: Random, at_s: float) -> Iterator[tuple[float, Act]]:
    """What one person does from `at_s` on: an advisory goes out with the first letter of a message;
    they may delete what stands there, think, and begin again, which sends another one.
    """
    speeds = load_speeds()
    reading = speeds.reading * rng.lognormvariate(0.0, SPREAD)
    typing = speeds.typing * rng.lognormvariate(0.0, SPREAD)
    for turn in turns:
        while True:
            yield at_s, "hint"
            if rng.random() < LEFT_SHARE / (1 + len(turns)):
                return
            if rng.random() >= DELETED_SHARE:
                break
            at_s += rng.uniform(0.1, 1.0) * turn.said / typing * 60
            if rng.random() < TAKEN_BACK_SHARE:
                yield at_s, "take back"
            at_s += rng.expovariate(1 / THINKING_S)
        at_s += turn.said / typing * 60
        yield at_s, "turn"
        at_s += turn.answered / reading * 60 + rng.expovariate(1 / THINKING_S)


def people(seed: int, *, place: str = "") -> Iterator[Event]:
    """What many people do, all at one address or each at their own."""
    rng, dialogues = Random(seed), load_dialogues()
    lives = []
    for number in range(NUM_PEOPLE):
        turns, at_s = rng.choice(dialogues), rng.uniform(0, BEGIN_S)
        name = f"p{number}"
        acts = [(at, place or name, name, act) for at, act in live(turns, rng, at_s)]
        lives.append(acts)
    return merge(*lives)


def flood(place: str, seconds: float) -> Iterator[Event]:
    """Sessions that nobody has, far faster than anybody types."""
    for number in range(int(FLOOD_RATE * seconds)):
        yield 60.0 + number / FLOOD_RATE, place, f"x{place}-{number}", "hint"


why_absent = registry.why_absent("sharegpt-like")
needs_traces = pytest.mark.skipif(bool(why_absent), reason=why_absent)


@needs_traces
def test_people_who_type_and_delete_are_not_throttled() -> None:
    """With a tenth of the limit, and so at one address as many as 4,000 with all of them."""
    limits = HintLimits(per_place=HintLimits().per_place // 10)
    for place in ("", "office"):
        house = House(limits)
        for event in people(1, place=place):
            house.do(*event)
        num_asked, num_refused = house.asked.total(), house.refused.total()
        assert num_asked > 2 * NUM_PEOPLE
        assert num_refused <= 0.001 * num_asked


@needs_traces
def test_a_flood_is_throttled_at_once_and_people_of_the_same_tenant_are_not() -> None:
    house = House()
    for event in merge(people(2), flood("flooder", 2.0)):
        house.do(*event)
    assert house.first_refused_at_s.pop("flooder") < 60.1
    assert house.refused.pop("flooder") > 0.85 * house.asked.pop("flooder")
    assert house.refused.total() <= 0.001 * house.asked.total()


@needs_traces
def test_floods_from_many_addresses_stop_at_the_tenant_and_spare_who_was_right() -> None:
    house = House()
    floods = (flood(f"flooder-{number}", 0.1) for number in range(12))
    for event in merge(people(3, place="office"), *floods):
        house.do(*event)
    num_refused, num_asked = house.refused.pop("office", 0), house.asked.pop("office")
    assert num_refused <= 0.001 * num_asked
    let_in = house.asked.total() - house.refused.total()
    assert let_in < 12 * 512 / 2, "the tenant's limit holds for all together"


NUM_USERS, NUM_LIARS, NUM_TURNS = 1_000, 100, 6


def gateway(seed: int) -> Iterator[Event]:
    """Users come back within two minutes, are announced, and come a while later. Liars have asked
    once, and then announce turns that do not come; and somebody invents sessions.
    """
    rng = Random(seed)
    events: list[Event] = []
    for number in range(NUM_USERS):
        at_s = rng.uniform(0, 60)
        for _ in range(NUM_TURNS):
            events.append((at_s, "users", f"u{number}", "turn"))
            at_s += rng.uniform(20, 120)
            events.append((at_s, "users", f"u{number}", "hint"))
            at_s += rng.uniform(1, 10)
    for number in range(NUM_LIARS):
        events.append((at_s := rng.uniform(0, 60), "liars", f"l{number}", "turn"))
        for _ in range(200):
            events.append((at_s := at_s + rng.uniform(1, 4), "liars", f"l{number}", "hint"))
            events.append((at_s := at_s + 1, "liars", f"l{number}", "take back"))
    events += [(each / 50, "inventor", f"x{each}", "hint") for each in range(50 * 600)]
    return iter(sorted(events))


def test_without_keys_behind_one_gateway_no_user_pays_for_what_others_send() -> None:
    house = House(one_address=True)
    for event in gateway(1):
        house.do(*event)
    assert house.asked["users"] == NUM_USERS * NUM_TURNS
    assert not house.refused["users"] and not house.not_acted_on["users"]
    lies = house.asked["liars"] - house.refused["liars"]
    acted_on = lies - house.not_acted_on["liars"]
    assert lies < house.asked["liars"] / 4 and acted_on < 30 * NUM_LIARS
    invented = house.asked["inventor"] - house.refused["inventor"]
    assert invented < 512 + 1.1 * 600, "what one address may, and one a second"


LEAD_S = 1.0  # from an announcement to its turn


def tenants(liars: set[str]) -> Iterator[Event]:
    """Tenants of `servegen`, with their bursts, who announce all that they ask for; of `liars`
    nothing that is announced comes."""
    events: list[Event] = []
    for script in servegen(20_000, 240 * SECOND, 1):
        for turn in script.turns:
            at_s = turn.wait_ns / SECOND
            events.append((at_s, script.tenant, turn.session, "hint"))
            if script.tenant not in liars:
                events.append((at_s + LEAD_S, script.tenant, turn.session, "turn"))
    return iter(sorted(events))


NO_SERVEGEN = registry.why_absent("servegen")


@pytest.mark.skipif(bool(NO_SERVEGEN), reason=NO_SERVEGEN)
def test_tenants_who_lie_cost_no_other_tenant_anything() -> None:
    """Whatever a tenant's size and bursts, from one hint a minute to more than a thousand."""
    asked = Counter(place for _, place, _, act in tenants(set()) if act == "hint")
    by_size = [place for place, _ in asked.most_common()]
    assert asked[by_size[0]] > 100 * asked[by_size[-1]], "they differ"
    liars = set(by_size[:6:2])
    house = House(by_tenant=True, one_address=True)
    for event in tenants(liars):
        house.do(*event)
    for liar in liars:
        let_in = asked[liar] - house.refused.pop(liar, 0)
        assert let_in < min(800, asked[liar] / 2), f"{liar}: {let_in} of {asked[liar]}"
    assert not house.refused, "nobody else's is"
