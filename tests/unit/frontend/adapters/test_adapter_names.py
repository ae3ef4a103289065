"""Names: whoever tells of them, in whatever order, the newest counts."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.adapters import names as adapter_names
from services.frontend.core.adapters.names import AdapterNames, Answer, NameTimes, StoredAdapter
from shared.adapters.record import EVERYBODY
from shared.ids import HostId, ModelId, TenantId
from shared.wire.messages import AdapterChanged, AdapterRecord

T, U = TenantId("t"), TenantId("u")
S = 1_000_000_000


def record(name: str = "a", tenant: TenantId = T, revision: int = 1) -> AdapterRecord:
    return AdapterRecord(
        name=name, tenant=tenant, model_id=ModelId("m"), adapter_hash=f"h{revision}", ranks={},
        lora_rank=8, num_bytes=1, image_bytes=1, root="", host_id=HostId("h"), created=0,
        revision=revision,
    )  # fmt: skip


def changed(new: AdapterRecord) -> AdapterChanged:
    return AdapterChanged(name=new.name, tenant=new.tenant, revision=new.revision, record=new)


def find(names: AdapterNames, tenant: TenantId = T, at_s: float = 0, **more: bool) -> Answer:
    return names.find(tenant, "a", int(at_s * S), is_base=more.get("is_base", False))


def tell(
    names: AdapterNames,
    own: StoredAdapter,
    everybody: StoredAdapter | None = None,
    at_s: float = 0,
    who: TenantId = T,
) -> None:
    names.on_stored(who, "a", own, int(at_s * S))
    names.on_stored(EVERYBODY, "a", everybody or StoredAdapter(None), int(at_s * S))


def test_a_name_is_asked_for_once_and_then_known() -> None:
    names = AdapterNames()
    assert find(names) == Answer(None, "first")
    tell(names, StoredAdapter(record()))
    assert find(names) == Answer(record())
    assert find(names, U) == Answer(None, "first"), "another tenant's is not known"
    tell(names, StoredAdapter(None), who=U)
    assert find(names, U) == Answer(None)


def test_ones_own_hide_everybodys() -> None:
    names = AdapterNames()
    shared = record(tenant=EVERYBODY)
    names.on_changed(changed(shared), 0)
    assert find(names) == Answer(shared, "first"), "there may be one of its own"
    tell(names, StoredAdapter(None), StoredAdapter(shared))
    assert find(names) == Answer(shared)
    names.on_changed(changed(record()), 0)
    assert find(names).record == record()
    gone = AdapterChanged(name="a", tenant=T, revision=2)
    names.on_changed(gone, 0)
    assert find(names).record == shared


def test_what_is_heard_is_not_believed_for_ever() -> None:
    names = AdapterNames(NameTimes(known_ns=30 * S, unknown_ns=S, base_ns=60 * S))
    tell(names, StoredAdapter(None))
    assert find(names, at_s=0.9) == Answer(None)
    assert find(names, at_s=1) == Answer(None, "first")
    assert find(names, at_s=59, is_base=True) == Answer(None)
    assert find(names, at_s=60, is_base=True) == Answer(None, "first")
    names.on_changed(changed(record()), 0)
    assert find(names, at_s=29) == Answer(record())
    assert find(names, at_s=30) == Answer(record(), "behind")
    tell(names, StoredAdapter(record()), at_s=30)
    assert find(names, at_s=31) == Answer(record())


def test_redis_that_was_wiped_unnames_nothing_and_a_removal_does() -> None:
    names = AdapterNames()
    tell(names, StoredAdapter(record(revision=3)))
    tell(names, StoredAdapter(None))
    assert find(names) == Answer(record(revision=3))
    tell(names, StoredAdapter(None, gone=2))
    assert find(names) == Answer(record(revision=3))
    tell(names, StoredAdapter(None, gone=4))
    assert find(names) == Answer(None)


EVENTS = st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=12)


@given(EVENTS, st.randoms())
def test_order_and_repetition_change_nothing(
    events: list[tuple[bool, int]], random: object
) -> None:
    """Odd revisions are records, even ones removals, told by a broadcast or by Redis."""

    def after(events: Sequence[tuple[bool, int]]) -> AdapterRecord | None:
        names = AdapterNames()
        names.on_stored(EVERYBODY, "a", StoredAdapter(None), 0)
        for is_broadcast, revision in events:
            new = record(revision=revision) if revision % 2 else None
            if is_broadcast:
                names.on_changed(
                    AdapterChanged(name="a", tenant=T, revision=revision, record=new), 0
                )
            else:
                names.on_stored(T, "a", StoredAdapter(new, 0 if new else revision), 0)
        return find(names).record

    newest = max((revision for _, revision in events), default=0)
    expected = record(revision=newest) if newest % 2 else None
    shuffled = list(events) + events[:2]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert after(events) == after(shuffled) == expected


def test_a_flood_of_names_is_bounded_and_spares_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapter_names, "UNKNOWN_MAX", 10)
    monkeypatch.setattr(adapter_names, "KNOWN_MAX", 5)
    names = AdapterNames()
    tell(names, StoredAdapter(record()))
    for number in range(100):
        names.on_stored(T, f"n{number}", StoredAdapter(None), 0)
    assert find(names) == Answer(record()) and len(names) == 11
    for number in range(100):
        names.on_changed(changed(record(f"n{number}")), 0)
        assert find(names).record == record(), "what is used stays"
    assert len(names) <= 15


def test_ten_thousand_names_are_looked_up_as_fast_as_one() -> None:
    names = AdapterNames()
    for number in range(10_000):
        names.on_changed(changed(record(f"n{number}")), 0)
    started = time.perf_counter()
    for number in range(10_000):
        names.find(T, f"n{number}", 0, is_base=False)
    assert time.perf_counter() - started < 5, "a look through all of them takes minutes"
