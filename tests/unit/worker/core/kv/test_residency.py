"""What must be on the device, for a user that is no turn: an *image*, as an adapter's weights would
be. Its keys are known at once, a part of it is of no use, and many run on it at the same time.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from services.worker.core.effects import Effect, LoadPages, ReleaseTicket
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.pages import NO_PAGE, PagePool
from services.worker.core.kv.residency import Chain, Residency
from services.worker.core.kv.staged import Staged
from services.worker.device.copying.gate import PageGate
from shared.blocks import BlockKey, chain_keys, root_key
from shared.ids import DEFAULT_TENANT, SessionId, TenantId
from shared.owners import owner_key
from tests.unit.worker.driver import MS, NUM_LAYERS, staged_blocks, take_pages

NUM_BLOCKS = 3
IMAGE_PAGES = NUM_BLOCKS * NUM_LAYERS
OWNER = owner_key(TenantId("t"), SessionId("image"))


def image_keys(name: str) -> list[BlockKey]:
    """Block i of an image has the one token i."""
    return chain_keys(root_key("model", "", name), range(NUM_BLOCKS), 1)


KEYS = image_keys("a")


def image(name: str = "a") -> Chain:
    return Chain(OWNER, image_keys(name), is_indivisible=True)


def history(tenant: str = "x", num_blocks: int = 2) -> Chain:
    """The KV of a turn's prefix, beside the images."""
    return Chain(OWNER, chain_keys(root_key("model", tenant), range(4 * num_blocks), 4))


@dataclass
class Shell:
    """A residency, and what the shell around it would do.

    Attributes:
        gate: whether a page's bytes are there, as the executor sees it.
        tickets: stages that are pinned.
    """

    residency: Residency
    gate: PageGate
    tickets: set[int]
    num_tickets: int = 0

    @classmethod
    def of(cls, num_pages: int) -> "Shell":
        return cls(Residency(PagePool(num_pages, NUM_LAYERS)), PageGate(num_pages), set())

    def bring(self, chain: Chain, num_staged: int = NUM_BLOCKS) -> None:
        """Want a chain: what is not here is asked for, staged at once, and loads."""
        self.residency.want(chain)
        if keys := self.residency.ask(chain, MS):
            self.perform(self.residency.stage(chain, self.answer(keys, num_staged)))
            self.perform(self.residency.load(chain))

    def answer(self, keys: list[BlockKey], num_staged: int = NUM_BLOCKS) -> Staged:
        self.num_tickets += 1
        self.tickets.add(self.num_tickets)
        return staged_blocks(self.num_tickets, keys[:num_staged])

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, LoadPages):
                for loads in effect.loads:
                    self.gate.set_loading(loads.pool_pages)
            else:
                assert isinstance(effect, ReleaseTicket)
                self.tickets.remove(effect.ticket)

    def land(self, pages: list[int], *, is_good: bool = True) -> None:
        """Loads into these pages end."""
        self.gate.settle(pages if is_good else [], [] if is_good else pages)
        self.perform(self.residency.stager.on_loaded(pages, is_good=is_good))

    def land_all(self, *, is_good: bool = True) -> None:
        self.land(self.residency.stager.flights.pages, is_good=is_good)

    def is_ready(self, pages: list[int]) -> bool:
        return self.gate.wait(pages, 0)


@pytest.fixture
def shell() -> Shell:
    return Shell.of(2 * IMAGE_PAGES)


def is_coming(residency: Residency, chain: Chain, layer: int) -> bool:
    """Whether a pass that came to `layer` now would have to wait for bytes of the chain."""
    return residency.arrivals(chain, 1.0, 0)[layer] > 0


def test_it_is_asked_for_staged_and_loaded(shell: Shell) -> None:
    wanted, residency = image(), shell.residency
    residency.want(wanted)
    assert not wanted.blocks and wanted.missing == KEYS
    assert residency.ask(wanted, MS) == KEYS and wanted.is_asked
    shell.perform(residency.stage(wanted, shell.answer(KEYS)))
    assert not wanted.is_asked and shell.tickets, "the arena's pages are read still"
    shell.perform(residency.load(wanted))
    assert not wanted.missing and [block.key for block in wanted.blocks] == KEYS
    assert shell.tickets and is_coming(residency, wanted, 0)
    shell.land_all()
    assert not shell.tickets and not is_coming(residency, wanted, 0)
    assert residency.settle(wanted) and not wanted.coming


def test_its_layers_are_gated_apart_from_another_chains(shell: Shell) -> None:
    """A pass that runs on an image and on history, whose layers come in any order."""
    weights, kv, residency = image(), history(), shell.residency
    for chain in (weights, kv):
        shell.bring(chain)
    of_weights, of_kv = residency.awaited(weights), residency.awaited(kv)
    assert list(map(len, of_weights)) == [NUM_BLOCKS] * NUM_LAYERS
    assert list(map(len, of_kv)) == [2] * NUM_LAYERS
    shell.land(of_weights[1])  # the higher layer first
    assert [shell.is_ready(pages) for pages in (*of_weights, *of_kv)] == [False, True, False, False]
    assert residency.awaited(weights) == [of_weights[0], []]
    assert is_coming(residency, weights, 0) and not is_coming(residency, weights, 1)
    shell.land(of_kv[0])
    assert [shell.is_ready(pages) for pages in (*of_weights, *of_kv)] == [False, True, True, False]
    assert is_coming(residency, weights, 0) and not is_coming(residency, kv, 0)
    shell.land(of_weights[0])
    assert residency.settle(weights) and residency.awaited(weights) == []
    assert residency.awaited(kv) == [[], of_kv[1]]


def test_two_run_on_the_same_pages_and_only_the_last_lets_them_go(shell: Shell) -> None:
    first, second, residency = image(), image(), shell.residency
    shell.bring(first)
    residency.want(second)
    assert second.blocks == first.blocks and not residency.ask(second, MS), "nothing is to be asked"
    assert residency.awaited(second) == residency.awaited(first)
    shell.land_all()
    shell.perform(residency.release(first))
    assert residency.num_available == IMAGE_PAGES
    assert take_pages(residency.pool, IMAGE_PAGES + 1) is None, "pages in use are not taken"
    shell.perform(residency.release(second))
    assert residency.num_available == 2 * IMAGE_PAGES


def test_it_is_evicted_only_when_its_pages_are_needed_and_can_be_wanted_again(
    shell: Shell,
) -> None:
    wanted, residency = image(), shell.residency
    shell.bring(wanted)
    shell.land_all()
    shell.perform(residency.release(wanted))
    again = image()
    residency.want(again)
    assert not again.missing and not residency.awaited(again), "it had stayed"
    shell.perform(residency.release(again))
    needed = residency.pool.allocate(NUM_BLOCKS + 1)
    residency.want(again)
    assert again.missing == KEYS[1:], "two blocks gave the page of their highest layer"
    shell.bring(again)
    assert again.missing and not shell.tickets, "there is no room for all of it"
    residency.pool.give_back(needed)
    shell.bring(again)
    assert not again.missing and list(map(len, residency.awaited(again))) == [0, 2]
    shell.land_all()
    assert residency.settle(again)


def test_what_is_prefetched_is_found(shell: Shell) -> None:
    residency = shell.residency
    staged = shell.answer(KEYS)
    expected = Expected(
        tenant=DEFAULT_TENANT, session_id=SessionId("s"), priority=1, expires_at_ns=10 * MS
    )
    residency.stager.expect(staged, (OWNER, ""), OWNER, expected, 0)
    shell.perform(residency.stager.pump(0))
    wanted = image()
    residency.want(wanted)
    assert not wanted.missing and is_coming(residency, wanted, 0)
    shell.land_all()
    assert residency.settle(wanted) and not residency.awaited(wanted) and not shell.tickets


def test_a_part_is_not_staged(shell: Shell) -> None:
    wanted, residency = image(), shell.residency
    staged = shell.answer(residency.ask(wanted, MS), NUM_BLOCKS - 1)
    shell.perform(residency.stage(wanted, staged))
    assert wanted.staged is None and not shell.tickets
    kv = history()
    shell.bring(kv, num_staged=1)
    assert len(kv.blocks) == 1, "of history a part is worth having"


def test_a_part_is_not_loaded() -> None:
    shell = Shell.of(IMAGE_PAGES + NUM_LAYERS)
    kv, wanted, residency = history(), image(), shell.residency
    shell.bring(kv)
    shell.bring(wanted)
    assert wanted.missing == KEYS and shell.tickets == {1}, "that of the history"
    assert residency.stager.num_loading == len(kv.blocks) * NUM_LAYERS
    shell.land_all()
    shell.perform(residency.release(kv))
    shell.bring(wanted)
    assert not wanted.missing, "what is idle makes room"


def test_a_stage_is_no_use_without_what_it_stands_on(shell: Shell) -> None:
    kv, residency = history(), shell.residency
    shell.bring(kv, num_staged=1)
    shell.land_all()
    keys = residency.ask(kv, MS)
    shell.perform(residency.release(kv))
    residency.forget(list(residency.pool.blocks.values()))
    shell.perform(residency.stage(kv, shell.answer(keys)))
    residency.want(kv)
    shell.perform(residency.load(kv))
    assert not kv.blocks and not residency.stager.num_loading and not shell.tickets


def test_a_remnant_without_room_for_the_rest_of_it_is_not_loaded() -> None:
    shell = Shell.of(NUM_LAYERS)
    kv, residency = history(num_blocks=1), shell.residency
    shell.bring(kv)
    shell.land_all()
    shell.perform(residency.release(kv))
    assert take_pages(residency.pool, 1) is not None
    shell.bring(kv)
    assert not kv.blocks and not residency.stager.num_loading and not shell.tickets
    assert residency.num_available == NUM_LAYERS - 1, "it stays, and may be taken"


def test_a_load_that_fails_is_told_to_all_and_asked_for_again(shell: Shell) -> None:
    users, residency = [image(), image()], shell.residency
    for user in users:
        shell.bring(user)
    shell.land([residency.awaited(users[0])[1][0]], is_good=False)
    assert [residency.settle(user) for user in users] == [False, False]
    shell.land_all()
    for user in users:
        shell.perform(residency.release(user))
    shell.bring(users[0])
    assert len(users[0].blocks) == NUM_BLOCKS and len(users[0].coming) == 1
    shell.land_all()
    assert residency.settle(users[0])


def test_what_comes_too_late_is_given_up_for_all(shell: Shell) -> None:
    users, residency = [image(), image()], shell.residency
    for user in users:
        shell.bring(user)
    residency.give_up(users[0])
    assert not residency.settle(users[1])
    shell.perform(residency.release(users[0]))
    residency.want(users[0])
    assert not residency.ask(users[0], MS), "its user has not allowed it"
    users[0].may_ask = True
    assert residency.ask(users[0], MS) == KEYS


def test_answers_that_nobody_waits_for_are_let_go(shell: Shell) -> None:
    wanted, residency = image(), shell.residency
    residency.ask(wanted, MS)
    wanted.on_time(MS - 1)
    assert wanted.is_asked
    wanted.on_time(MS)
    shell.perform(residency.stage(wanted, shell.answer(KEYS)))
    residency.ask(wanted, 3 * MS)
    shell.perform(residency.stage(wanted, shell.answer(KEYS[1:])))
    assert wanted.is_asked and not shell.tickets, "that was no answer to this question"
    shell.perform(residency.stage(wanted, shell.answer(KEYS)))
    assert shell.tickets and residency.ask(wanted, 4 * MS)
    shell.perform(residency.unstage(wanted))
    assert not shell.tickets and not wanted.is_asked
    residency.ask(wanted, 5 * MS)
    assert residency.stage(wanted, None) == [] and not wanted.is_asked


def test_what_is_forgotten_goes_with_its_last_user(shell: Shell) -> None:
    wanted, residency = image(), shell.residency
    shell.bring(wanted)
    residency.forget(wanted.blocks)
    other = image()
    residency.want(other)
    assert other.missing == KEYS
    shell.land_all()
    shell.perform(residency.release(wanted))
    assert residency.pool.num_free == residency.pool.num_pages


class Users(RuleBasedStateMachine):
    """Users of three images and two histories come and go in a pool that holds one and a half."""

    chains = Bundle("chains")

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell.of(IMAGE_PAGES * 3 // 2)
        self.live: list[Chain] = []

    @rule(target=chains, name=st.sampled_from("abc"))
    def need_an_image(self, name: str) -> Chain:
        return self._need(image(name))

    @rule(target=chains, tenant=st.sampled_from("xy"))
    def need_history(self, tenant: str) -> Chain:
        return self._need(history(tenant, NUM_BLOCKS))

    def _need(self, chain: Chain) -> Chain:
        self.live.append(chain)
        self.shell.residency.want(chain)
        return chain

    @rule(chain=chains)
    def ask(self, chain: Chain) -> None:
        if chain.staged is None:
            self.shell.residency.ask(chain, MS)

    @rule(chain=chains, num_staged=st.integers(0, NUM_BLOCKS), is_late=st.booleans())
    def answer(self, chain: Chain, num_staged: int, is_late: bool) -> None:
        if chain.is_asked:
            staged = self.shell.answer(chain.keys[chain.staged_from :], num_staged)
            chain.on_time(MS if is_late else 0)
            self.shell.perform(self.shell.residency.stage(chain, staged))
            assert not is_late or chain.staged is None

    @rule(chain=chains)
    def load(self, chain: Chain) -> None:
        residency = self.shell.residency
        if not residency.settle(chain):
            self.shell.perform(residency.release(chain))
        residency.want(chain)
        has_room = len(chain.missing) * NUM_LAYERS <= residency.num_available
        is_staged = chain.num_in_sight == len(chain.keys) and chain.staged_from <= len(chain.blocks)
        is_lost = any(block.lost for block in residency.pool.blocks.values())
        self.shell.perform(residency.load(chain))
        assert chain.staged is None
        assert not (has_room and is_staged and chain.missing) or is_lost

    @rule(data=st.data(), is_good=st.booleans())
    def land(self, data: st.DataObject, is_good: bool) -> None:
        if pages := sorted(self.shell.residency.stager.flights.pages):
            self.shell.land([data.draw(st.sampled_from(pages))], is_good=is_good)

    @rule(chain=chains)
    def give_up(self, chain: Chain) -> None:
        self.shell.residency.give_up(chain)

    @rule(chain=chains)
    def make_room(self, chain: Chain) -> None:
        """A user gives its blocks, and waits on."""
        self.shell.perform(self.shell.residency.release(chain))

    @rule(chain=consumes(chains))
    def release(self, chain: Chain) -> None:
        self.shell.perform(self.shell.residency.release(chain))
        self.live.remove(chain)

    @invariant()
    def pages_are_conserved_and_held_ones_stay(self) -> None:
        pool, stager = self.shell.residency.pool, self.shell.residency.stager
        held = [block for chain in self.live for block in chain.blocks]
        assert all(pool.is_whole(block) for block in held)
        for chain in self.live:
            assert [block.key for block in chain.blocks] == chain.keys[: len(chain.blocks)]
        pages = pool.table[pool.table != NO_PAGE].tolist() + pool.unused()[0].tolist()
        assert sorted(pages) == list(range(pool.num_pages))
        for block in pool.blocks.values():
            assert block.refs == sum(each is block for each in held)
            assert not block.lost or block.refs or block.loading
        assert stager.num_loading == sum(block.loading for block in pool.blocks.values())
        pinned = {chain.staged.ticket for chain in self.live if chain.staged is not None}
        pinned |= {flight.ticket for flight in stager.flights._flights.values()}
        assert self.shell.tickets == pinned

    @invariant()
    def a_layer_is_awaited_exactly_until_its_bytes_are_there(self) -> None:
        residency = self.shell.residency
        for chain in self.live:
            if not residency.settle(chain):
                continue
            awaited = residency.awaited(chain) or [[] for _ in range(NUM_LAYERS)]
            for layer, pages in enumerate(awaited):
                here = [int(residency.pool.table[block.row, layer]) for block in chain.blocks]
                assert all(not self.shell.is_ready([page]) for page in pages)
                assert self.shell.is_ready([page for page in here if page not in pages])
                assert is_coming(residency, chain, layer) == bool(pages)

    def teardown(self) -> None:
        for chain in self.live:
            self.shell.perform(self.shell.residency.release(chain))
        self.shell.land_all()
        pool = self.shell.residency.pool
        assert pool.num_available == pool.num_pages and not self.shell.tickets


TestUsers = Users.TestCase
TestUsers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
