"""Names, what a tenant may have, and when files go."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.core.registry import (
    AdapterBusy,
    DiskFull,
    Name,
    Registry,
    RegistryLimits,
    TooManyAdapters,
    next_revision,
)
from shared.adapters.config import AdapterTooLarge
from shared.adapters.record import AdapterExists
from shared.errors import SymphonyError, TenantQuota
from shared.ids import HostId, ModelId, TenantId
from shared.wire.messages import AdapterRecord

KEEP_NS = 100
T, U = TenantId("t"), TenantId("u")


def registry(**limits: int) -> Registry:
    return Registry(RegistryLimits(**{"adapter_bytes_max": 100, "keep_ns": KEEP_NS} | limits))


def record(
    name: str = "a",
    adapter_hash: str = "h",
    tenant: TenantId = T,
    revision: int = 1,
    size: int = 10,
) -> AdapterRecord:
    return AdapterRecord(
        name=name, tenant=tenant, model_id=ModelId("m"), adapter_hash=adapter_hash, ranks={},
        lora_rank=8, num_bytes=size, image_bytes=0, root="", host_id=HostId("h"), created=0,
        revision=revision,
    )  # fmt: skip


def add(it: Registry, new: AdapterRecord, now_ns: int = 0, *, replace: bool = False) -> None:
    name = new.tenant, new.name
    it.begin(name, new.num_bytes, replace=replace)
    it.stand(new, now_ns)
    it.end(name)


def test_a_name_is_taken_until_it_is_replaced_or_removed() -> None:
    it = registry()
    add(it, record())
    with pytest.raises(AdapterExists):
        add(it, record())
    add(it, record(tenant=U))
    add(it, record(adapter_hash="i", revision=2), replace=True)
    found = it.get((T, "a"))
    assert found is not None and found.adapter_hash == "i"
    assert it.fall((T, "a"), 0) == found and it.fall((T, "a"), 0) is None
    add(it, record())


def test_files_stay_while_a_turn_may_need_them_and_while_any_name_wants_them() -> None:
    it = registry()
    add(it, record())
    add(it, record("b"))
    it.fall((T, "a"), 5)
    assert it.droppable(1000) == []
    it.fall((T, "b"), 10)
    assert it.droppable(10 + KEEP_NS - 1) == []
    add(it, record(), 50)  # it came back
    assert it.droppable(1000) == []
    add(it, record(adapter_hash="i"), 60, replace=True)
    assert it.droppable(60 + KEEP_NS) == ["h"]
    assert it.droppable(10_000) == [] and it.num_files == 1


def test_files_that_nobody_names_at_the_start_go_later() -> None:
    it = registry()
    lost = record("lost", "gone")
    assert it.on_found([record(), lost], {"h": 10, "orphan": 7}, 0) == [lost]
    assert it.droppable(KEEP_NS - 1) == [] and it.droppable(KEEP_NS) == ["orphan"]
    assert it.names == {(T, "a")} and it.bytes_of(T) == 10


def test_one_at_a_time_under_a_name_and_not_too_many() -> None:
    it = registry(adds_max=2)
    it.begin((T, "a"), 1, replace=False)
    with pytest.raises(AdapterBusy):
        it.begin((T, "a"), 1, replace=True)
    it.begin((T, "b"), 1, replace=False)
    with pytest.raises(AdapterBusy):
        it.begin((U, "c"), 1, replace=False)
    it.end((T, "a"))
    it.begin((U, "c"), 1, replace=False)


def test_limits_count_what_comes_and_what_has_not_gone() -> None:
    it = registry(tenant_adapters_max=2, tenant_bytes_max=50)
    with pytest.raises(AdapterTooLarge):
        it.begin((T, "a"), 101, replace=False)
    it.begin((T, "coming"), 20, replace=False)
    add(it, record())
    with pytest.raises(TenantQuota, match="as many adapters"):
        it.begin((T, "c"), 1, replace=False)
    it.begin((U, "c"), 50, replace=False)
    for revision, adapter_hash in enumerate("ij", start=2):
        add(it, record(adapter_hash=adapter_hash, revision=revision), replace=True)
    with pytest.raises(TenantQuota, match="60 bytes"):  # 10 stand, 20 go, 20 come
        it.begin((T, "a"), 10, replace=True)
    it.droppable(KEEP_NS)
    add(it, record(adapter_hash="k", revision=4), replace=True)


def test_tenants_together_are_limited_though_each_is_within_its_own() -> None:
    it = registry(adapters_max=3, tenant_adapters_max=2)
    add(it, record())
    add(it, record("b"))
    it.begin((U, "coming"), 1, replace=False)
    with pytest.raises(TooManyAdapters, match="may be: 3"):
        it.begin((U, "d"), 1, replace=False)
    add(it, record(revision=2), replace=True)
    it.fall((T, "b"), 0)
    it.begin((U, "d"), 1, replace=False)


def test_files_of_all_count_once_each_and_until_they_are_gone() -> None:
    it = registry(disk_bytes_max=40)
    it.on_found([record()], {"h": 10, "orphan": 5}, 0)
    add(it, record(tenant=U))  # the same files
    it.begin((U, "coming"), 15, replace=False)
    with pytest.raises(DiskFull, match=r"would have 41 bytes .* may have 40"):
        it.begin((T, "b"), 11, replace=False)
    it.begin((T, "b"), 10, replace=False)
    it.end((U, "coming"))
    for tenant in (T, U):
        it.fall((tenant, "a"), 0)
    with pytest.raises(DiskFull):
        it.begin((T, "c"), 16, replace=False)
    assert it.droppable(KEEP_NS) == ["h", "orphan"]
    it.begin((T, "c"), 30, replace=False)


def test_a_revision_is_above_all() -> None:
    assert next_revision() == 1 and next_revision(0, 7, 3) == 8


@dataclass
class Model:
    """The same, the slow way."""

    records: dict[Name, AdapterRecord] = field(default_factory=dict)
    going: dict[str, tuple[TenantId, int, int]] = field(default_factory=dict)

    def take(self, name: Name, now_ns: int) -> None:
        old = self.records.pop(name, None)
        if old and all(each.adapter_hash != old.adapter_hash for each in self.records.values()):
            self.going[old.adapter_hash] = (old.tenant, old.num_bytes, now_ns + KEEP_NS)

    def bytes_of(self, tenant: TenantId) -> int:
        standing = sum(each.num_bytes for each in self.records.values() if each.tenant == tenant)
        return standing + sum(size for owner, size, _ in self.going.values() if owner == tenant)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([T, U]), st.sampled_from("ab"), st.sampled_from("hijk"),
            st.sampled_from(["add", "replace", "fall", "drop"]), st.integers(0, 60),
        )
    )
)  # fmt: skip
def test_counts_follow_the_records(
    steps: list[tuple[TenantId, str, str, str, int]],
) -> None:
    it, model, now_ns = registry(tenant_bytes_max=60, tenant_adapters_max=2), Model(), 0
    for number, (tenant, own, adapter_hash, what, later_ns) in enumerate(steps):
        now_ns += later_ns
        name = tenant, own
        if what == "drop":
            due = {key for key, (_, _, at_ns) in model.going.items() if at_ns <= now_ns}
            assert set(it.droppable(now_ns)) == due
            for key in due:
                del model.going[key]
        elif what == "fall":
            model.take(name, now_ns)
            it.fall(name, now_ns)
        else:
            new = record(own, adapter_hash, tenant, number + 1, 10 + ord(adapter_hash) % 3)
            try:
                add(it, new, now_ns, replace=what == "replace")
            except SymphonyError:
                continue
            model.take(name, now_ns)
            model.records[name] = new
            model.going.pop(adapter_hash, None)
        assert {name: it.get(name) for name in it.names} == model.records
        assert [it.bytes_of(t) for t in (T, U)] == [model.bytes_of(t) for t in (T, U)]
    again = registry()
    again.on_found(
        list(model.records.values()),
        {each.adapter_hash: each.num_bytes for each in model.records.values()},
        0,
    )
    assert again.state == it.state, "a start finds the same state"


def test_a_copy_stays_until_nobody_has_asked_for_it_for_long() -> None:
    it = registry()
    it.begin_copy("h", 10)
    assert not it.use_files("h", 0)
    it.on_copied("h", 0)
    it.end_copy("h")
    assert it.has_files("h") and it.use_files("h", 60) and not it.named_files
    assert it.droppable(KEEP_NS) == [] and it.droppable(60 + KEEP_NS) == ["h"]
    assert not it.has_files("h")
    it.begin_copy("i", 10)
    it.end_copy("i")
    assert not it.has_files("i"), "it did not come"


def test_a_name_for_a_copy_keeps_it_and_counts_once() -> None:
    it = registry(disk_bytes_max=20)
    it.begin_copy("h", 10)
    it.on_copied("h", 0)
    it.end_copy("h")
    add(it, record(), 1)
    assert it.bytes_of(T) == 10 and it.named_files == {"h"}
    assert it.use_files("h", 5) and it.droppable(10 * KEEP_NS) == []
    it.begin_copy("i", 10)  # there is room for as much


def test_copies_keep_to_the_host_s_room_and_those_ahead_to_half_of_it() -> None:
    it = registry(disk_bytes_max=20)
    it.begin_copy("h", 15)
    with pytest.raises(DiskFull):
        it.begin_copy("i", 10)
    with pytest.raises(DiskFull):
        add(it, record())
    it.end_copy("h")
    assert it.has_room_ahead(10) and not it.has_room_ahead(11)
    add(it, record())
    assert not it.has_room_ahead(1) and registry().has_room_ahead(1 << 60)
