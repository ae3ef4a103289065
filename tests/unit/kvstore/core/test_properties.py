"""Whatever happens, in whatever order: pages are conserved, and no page in use is taken away."""

from dataclasses import replace
from itertools import chain
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.kvstore.core import LoadOutcome, Pinned, SetWords, WriteOutcome
from services.kvstore.core.base.events import RemotePrefix
from shared.arena import PageState
from shared.errors import NotFound
from shared.eviction import EvictionName
from shared.ids import HostId, SessionId, TenantId, WorkerId
from shared.owners import NO_OWNER, OwnerKey, owner_key
from tests.unit.kvstore.core.host import (
    LAYERS,
    NUM_PAGES,
    PEERS,
    TICKET_NS,
    WORKERS,
    Host,
    each_page,
    pages_that_go,
)

workers = st.sampled_from(WORKERS)
sequences = st.integers(0, 2)
lengths = st.integers(1, 4)
peers = st.sampled_from(PEERS)
owners = st.sampled_from([owner_key(TenantId("t"), SessionId(name)) for name in "ab"])


class KvMachine(RuleBasedStateMachine):
    """Two workers, three sequences of up to four blocks, twelve pages for twenty-four."""

    @initialize(
        eviction=st.sampled_from(get_args(EvictionName)),
        num_pages=st.integers(9, NUM_PAGES),
        disk_bytes_max=st.sampled_from([0, 450, 1500]),
    )
    def start(self, eviction: EvictionName, num_pages: int, disk_bytes_max: int) -> None:
        self.host = Host(disk_bytes_max=disk_bytes_max, eviction=eviction, num_pages=num_pages)
        self.leased: dict[WorkerId, list[int]] = {}
        self.held: dict[WorkerId, list[Pinned]] = {}
        self.renewed_at_ns: dict[int, int] = {}  # by ticket
        self.deleted: set[OwnerKey] = set()
        self.reported: dict[OwnerKey, int] = {}
        for worker in WORKERS:
            self._open(worker)

    def _open(self, worker: WorkerId) -> None:
        self.host.open(worker)
        self.leased[worker] = []
        self.held[worker] = []

    @precondition(lambda self: self.host.arena.num_pages < NUM_PAGES)
    @rule(num_pages=st.integers(1, 3))
    def grow(self, num_pages: int) -> None:
        num_free = self.host.arena.num_free
        num_pages = min(num_pages, NUM_PAGES - self.host.arena.num_pages)
        self.host.grow(num_pages)
        assert self.host.arena.num_free == num_free + num_pages

    @rule(worker=workers, num_pages=st.integers(1, 5))
    def lease(self, worker: WorkerId, num_pages: int) -> None:
        arena, num_before = self.host.arena, len(self.host.effects)
        idle = [block for block in arena.holding.values() if block.is_idle]
        is_stored = self.host.core._tiers.has_copy
        expected = pages_that_go(
            idle,
            num_pages - arena.num_free,
            is_stored,
            self.host.eviction,
            self.host.now_ns,
            self.host.core._returns,
            self.host.core._tiers.is_kept_below,
            lambda block: arena.idle._group_of[block].number,
            is_trusted=arena.guard.is_trusted,
        )
        pages = self.host.lease(num_pages, worker)
        assert len(pages) <= num_pages
        gone: list[int] = []
        for effect in self.host.effects[num_before:]:
            if isinstance(effect, SetWords) and effect.state is PageState.FREE:
                gone += effect.pages
        assert gone == expected
        self.leased[worker] += pages

    @rule(worker=workers, sequence=sequences, start=st.integers(0, 3), owner=owners)
    def commit(self, worker: WorkerId, sequence: int, start: int, owner: OwnerKey) -> None:
        own = self.leased[worker]
        num_blocks = min(len(own) // LAYERS, 4 - start)
        pages = [own.pop() for _ in range(num_blocks * LAYERS)]
        names = [(sequence, start + at) for at in range(num_blocks)]
        self.host.commit(names, pages, worker, owner)

    @rule(worker=workers, sequence=sequences, num_blocks=lengths, owner=owners)
    def store(self, worker: WorkerId, sequence: int, num_blocks: int, owner: OwnerKey) -> None:
        self.lease(worker, num_blocks * LAYERS)
        self.commit(worker, sequence, 0, owner)
        while self.host.writes:
            self.host.finish_write()

    @rule(
        worker=workers, sequence=sequences, num_blocks=lengths, num_offered=lengths, peer=peers,
        priority=st.integers(0, 2),
    )  # fmt: skip
    def stage_from_peer(
        self, worker: WorkerId, sequence: int, num_blocks: int, num_offered: int, peer: HostId,
        priority: int,
    ) -> None:  # fmt: skip
        offer = RemotePrefix(peer, num_offered)
        staged = self.host.stage(sequence, num_blocks, priority, worker, offer=offer)
        if staged.num_blocks:
            self.held[worker].append(staged)
            self.renewed_at_ns[staged.ticket] = self.host.now_ns

    @precondition(lambda self: any(self.host.fetches.values()))
    @rule(data=st.data(), outcome=st.sampled_from(LoadOutcome), owner=owners)
    def finish_fetch(self, data: st.DataObject, outcome: LoadOutcome, owner: OwnerKey) -> None:
        """What was deleted meanwhile does not come back by it."""
        peer = data.draw(st.sampled_from([p for p in PEERS if self.host.fetches[p]]))
        fetched = self.host.finish_fetch(peer, outcome, owner)
        if owner in self.deleted:
            found = {block.block_id for block in self.host.arena.blocks.values()}
            came = fetched[outcome is LoadOutcome.FAILED :]  # then its first page did not
            assert not [page for page in came if page.block_id in found]

    @rule(owner=owners)
    def finish_fetches(self, owner: OwnerKey) -> None:
        self.host.finish_fetches(owner)

    @rule()
    def evict_all(self) -> None:
        self.host.evict_all()

    @rule()
    def finish_loads(self) -> None:
        while self.host.loads:
            self.host.finish_load()

    @rule(worker=workers, sequence=sequences, num_blocks=lengths, priority=st.integers(0, 2))
    def stage(self, worker: WorkerId, sequence: int, num_blocks: int, priority: int) -> None:
        staged = self.host.stage(sequence, num_blocks, priority, worker)
        if staged.num_blocks:
            self.held[worker].append(staged)
            self.renewed_at_ns[staged.ticket] = self.host.now_ns

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.held[w]]))
        staged = self.held[worker].pop(data.draw(st.integers(0, len(self.held[worker]) - 1)))
        self.host.release(staged.ticket, worker=worker)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), num_kept=st.integers(-1, 5))
    def trim(self, data: st.DataObject, num_kept: int) -> None:
        """A worker wants less than it asked for."""
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.held[w]]))
        at = data.draw(st.integers(0, len(self.held[worker]) - 1))
        staged = self.held[worker][at]
        if num_kept == 0:
            return  # that releases it
        self.host.release(staged.ticket, worker=worker, num_kept=num_kept)
        if 0 < num_kept < staged.num_blocks:
            pages, generations = (
                [number for n, number in enumerate(each) if n % staged.num_blocks < num_kept]
                for each in (staged.pages, staged.generations)
            )
            self.held[worker][at] = replace(
                staged, num_blocks=num_kept, pages=pages, generations=generations
            )

    @rule(worker=workers)
    def give_back(self, worker: WorkerId) -> None:
        self.host.release(pages=self.leased[worker], worker=worker)
        self.leased[worker] = []

    @precondition(lambda self: self.host.loads)
    @rule(outcome=st.sampled_from(LoadOutcome))
    def finish_load(self, outcome: LoadOutcome) -> None:
        self.host.finish_load(outcome)

    @precondition(lambda self: self.host.writes)
    @rule(outcome=st.sampled_from(WriteOutcome))
    def finish_write(self, outcome: WriteOutcome) -> None:
        self.host.finish_write(outcome)

    @rule(sequence=sequences, num_blocks=lengths)
    def delete(self, sequence: int, num_blocks: int) -> None:
        self.host.delete([(sequence, index) for index in range(num_blocks)])

    @rule(owner=owners)
    def forget(self, owner: OwnerKey) -> None:
        """Nothing that the session made can be found afterwards, in any tier."""
        self.host.delete([], owner)
        self.deleted.add(owner)
        assert not [b for b in self.host.arena.blocks.values() if b.owner == owner]
        assert not self.host.core.disk.owned(owner) and not self.host.core.arena_only.owned(owner)
        assert self.host.delete([], owner) == 0

    @rule()
    def report(self) -> None:
        """Sessions are reported that have blocks on disk or in memory."""
        core, host = self.host.core, self.host
        if core.locations.is_in_doubt:
            core.locations.on_checked(None, f"life {core.counts.num_disks_anew}")
            self.reported = {}
        self.reported |= host.tell()
        assert {owner for owner, num in self.reported.items() if num} == {*core._here.owners}

    @rule(lives_ago=st.integers(0, 1))
    def damage_disk(self, lives_ago: int) -> None:
        life = self.host.core.counts.num_disks_anew + 1 - lives_ago
        self.host.perform(self.host.core.on_disk_damaged(life, self.host.now_ns))

    @rule(worker=workers)
    def die(self, worker: WorkerId) -> None:
        self.host.lose(worker)
        self._open(worker)

    @rule(duration_ns=st.integers(0, 400))
    def pass_time(self, duration_ns: int) -> None:
        self.host.pass_time(duration_ns)
        self._let_expire()

    @rule(worker=workers, data=st.data())
    def renew(self, worker: WorkerId, data: st.DataObject) -> None:
        """What it names stays; what it forgot, or has let go, does no harm."""
        tickets = data.draw(st.lists(st.sampled_from([0, *self.renewed_at_ns]), max_size=4))
        self.host.renew(tickets, self.leased[worker], worker)
        own = {staged.ticket for staged in self.held[worker]}
        for ticket in own.intersection(tickets):
            self.renewed_at_ns[ticket] = self.host.now_ns

    @rule(worker=workers, data=st.data())
    def lose_track(self, worker: WorkerId, data: st.DataObject) -> None:
        """What it does not name goes back, but not what it may only not know of yet."""
        kept = [page for page in self.leased[worker] if data.draw(st.booleans())]
        before = set(self.host.leased(worker))
        self.host.renew([], kept, worker)
        after = set(self.host.leased(worker))
        assert set(kept) <= after
        young = {page for page in before if self.host.is_young_lease(worker, page)}
        assert young <= after, "taken back before its worker can know of it"
        self.leased[worker] = [page for page in self.leased[worker] if page in after]

    @rule(worker=workers)
    def hear_an_old_open(self, worker: WorkerId) -> None:
        """Word of an open, late or doubled, takes nothing from who has opened since."""
        before = set(self.host.leased(worker))
        self.host.open_as(worker, self.host.incarnations[worker])
        for incarnation in self.host.retired(worker):
            with pytest.raises(NotFound):
                self.host.open_as(worker, incarnation)
        assert set(self.host.leased(worker)) == before

    @rule()
    def fall_silent(self) -> None:
        self.host.pass_time(TICKET_NS)
        self._let_expire()
        assert not any(self.held.values())
        assert not any(block.num_pins for block in self.host.arena.holding.values())

    def _let_expire(self) -> None:
        for worker, held in self.held.items():
            self.held[worker] = [
                staged
                for staged in held
                if self.host.now_ns - self.renewed_at_ns[staged.ticket] < TICKET_NS
            ]

    @invariant()
    def pages_are_conserved(self) -> None:
        self.host.check_pages_conserved()
        pinned = [block for block in self.host.arena.holding.values() if block.num_pins]
        assert self.host.arena.num_pinned == len(pinned)

    @invariant()
    def owners_are_listed(self) -> None:
        arena, disk = self.host.arena, self.host.core.disk
        num_owned = sum(block.owner != NO_OWNER for block in arena.blocks.values())
        assert sum(len(keys) for keys in arena._owned._keys.values()) == num_owned
        assert sum(map(disk.num_owned, disk.owners)) == len(disk)

    @invariant()
    def what_is_held_stays(self) -> None:
        for staged in (s for tickets in self.held.values() for s in tickets):
            for page, generation in zip(staged.pages, staged.generations, strict=True):
                is_failed = (page, generation) in self.host.failed
                assert is_failed or self.host.words[page][0] == generation, (
                    "a pinned page was given away"
                )
        for write in self.host.writes:
            block = self.host.arena.holding[write.block_id]
            assert block.pages == write.pages, "the only copy of a block was evicted"
        batches = chain(self.host.loads, *self.host.fetches.values())
        for load in (load for batch in batches for load in each_page(batch)):
            assert self.host.words[load.page][0] == load.generation, "a page in flight was taken"

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        for worker in WORKERS:
            self.host.lose(worker)
        while self.host.loads:
            self.host.finish_load()
        self.host.finish_fetches()
        while self.host.writes:
            self.host.finish_write()
        self.host.check_pages_conserved()
        self.host.open()
        self.host.grow(NUM_PAGES - self.host.arena.num_pages)
        assert len(self.host.lease(NUM_PAGES)) == NUM_PAGES, "a page is lost for ever"


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
