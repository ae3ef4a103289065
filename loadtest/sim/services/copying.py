"""What moves pages on a simulated worker: loads from its host's arena into the pool, stores back,
and images of adapters that are built from their files.

Copies write when their bytes would land, whichever block has the page by then.
"""

from functools import partial
from random import Random
from typing import Any, Protocol

from loadtest.sim.arena import SimArena
from loadtest.sim.memory import GARBAGE, IMAGE, Content, PageLoad, each_page, image_page
from loadtest.sim.services.model import Model
from loadtest.sim.timeline import SECOND, US, Action
from services.worker.core.effects import BlockWrite, BuildImage, PageLoads
from services.worker.device.copying.mover import CalledBack, Loaded, Stored
from services.worker.ports import OnMoved
from shared.arena import PageState, checksum

FETCH_TIMEOUT_NS = 2 * SECOND  # a page that is overdue by so much does not come any more
LOAD_NS = STORE_NS = 500 * US
LINKS_NS = (LOAD_NS, 20 * LOAD_NS)  # a page takes up to so long
# Of pages: the thread that copies has no core for a while.
SLOW_LOAD_SHARE, SLOW_LOAD_NS = 0.02, 3 * SECOND
SLOW_STORE_SHARE, SLOW_STORE_NS = 0.05, 3 * SECOND
BAD_COPY_SHARE = 0.01  # of pages: the device does not take them
BAD_BUILD_SHARE = 0.1  # of images that are built: their files cannot be read


class Host(Protocol):
    """The process that a device is in."""

    life: int

    @property
    def now_ns(self) -> int:
        """Its monotonic clock."""

    def run(self, life: int, action: Action) -> None:
        """Do it now, if this life still lasts."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""

    def die_of_poison(self) -> None:
        """A row ended the process."""


class Waiter(Protocol):
    """The steps that wait for loads."""

    def is_awaited(self, page: int) -> bool:
        """Whether a step waits for this pool page."""

    def on_landed(self, page: int, *, is_good: bool) -> None:
        """A load into this pool page ended."""

    def on_called_back(self, page: int) -> None:
        """Nothing is loaded into this pool page."""


class Copies:
    """Mover and builder of a simulated worker.

    Args:
        on_moved: called with the end of each copy.

    Attributes:
        memory: what each pool page holds.
        loading: loads in flight, by pool page.
        building: pool pages whose part of an image is being built.
        late: pool pages in flight for which a step that is over waited long enough.
        arena: the host's, while there is a connection to the kvstore; of connection `epoch`.
    """

    def __init__(
        self, host: Host, model: Model, waiter: Waiter, random: Random, on_moved: OnMoved
    ) -> None:
        self._host = host
        self._model = model
        self._waiter = waiter
        self._random = random
        self._on_moved = on_moved
        self.memory: dict[int, Content] = {}
        self.loading: dict[int, PageLoad] = {}
        self.building: set[int] = set()
        self.late: set[int] = set()
        self.arena: SimArena | None = None
        self.epoch = 0
        self._copying: set[int] = set()  # of those that load, whose end is settled
        self._unbuilt: set[str] = set()  # adapters whose last build failed: the next one does not
        self._load_ns = random.choice(LINKS_NS)

    @property
    def page_ns(self) -> int:
        """What a load takes, mostly."""
        return self._load_ns // 2

    # The mover.

    def prepare(self, arena: Any) -> None:
        """This arena is to be used next."""

    def attach(self, arena: Any, epoch: int) -> None:
        """Use this arena from now on; what is under way keeps the old."""
        self.arena = arena
        self.epoch = epoch

    def detach(self) -> None:
        """Store nothing any more: the leases end."""
        self.arena = None

    def submit_loads(self, loads: list[PageLoads]) -> None:
        """Start these; each page ends by itself."""
        for load in (load for run in loads for load in each_page(run)):
            assert load.pool_page not in self.loading, "two loads into one page"
            self.memory.pop(load.pool_page, None)
            self.loading[load.pool_page] = load
            arena = self.arena
            if arena is None or load.epoch != self.epoch:
                self._copying.add(load.pool_page)
                self._host.later(0, partial(self._settle, load.pool_page, is_good=False))
                continue
            now_ns = self._host.now_ns
            deadline_ns = max(now_ns, load.ready_at_ns) + FETCH_TIMEOUT_NS
            if arena.promise(load.arena_page, load.generation) is PageState.FILLING:
                self._host.later(deadline_ns - now_ns, partial(self._look, load, arena, 0))
            self._look(load, arena, deadline_ns)

    def call_back(self, pool_pages: list[int]) -> None:
        """Load nothing into these pages, but for those whose copy was started."""
        taken = [page for page in pool_pages if page in self.loading and page not in self._copying]
        for page in taken:
            assert not self._waiter.is_awaited(page), "a step waits for it"
            del self.loading[page]
            self.late.discard(page)
            self._waiter.on_called_back(page)
        if taken:
            self._on_moved(CalledBack(taken))

    def submit_stores(self, writes: list[BlockWrite], epoch: int) -> None:
        """Copy these blocks down; each ends by itself."""
        for write in writes:
            self._store(write, self.arena, epoch, [])

    # The builder.

    def submit(self, build: BuildImage, folder: str) -> None:
        """Make these pages of an adapter's image; all of them end together."""
        del folder
        random = self._random
        for page in build.pool_pages:
            assert page not in self.building, "a page is made twice"
            self.memory.pop(page, None)
        self.building.update(build.pool_pages)
        is_slow = random.random() < SLOW_LOAD_SHARE
        delay_ns = random.randrange(SLOW_LOAD_NS if is_slow else LOAD_NS) + 1
        name = build.adapter.adapter_hash
        is_good = name in self._unbuilt or random.random() >= BAD_BUILD_SHARE
        self._unbuilt ^= {name} if name in self._unbuilt or not is_good else set()
        self._host.later(delay_ns, partial(self._built, build, is_good=is_good))

    def _built(self, build: BuildImage, *, is_good: bool) -> None:
        name = build.adapter.adapter_hash
        for (layer, number), page in zip(build.places, build.pool_pages, strict=True):
            self.building.remove(page)
            self.memory[page] = image_page(name, layer, number) if is_good else GARBAGE
        good, bad = (build.pool_pages, []) if is_good else ([], build.pool_pages)
        self._on_moved(Loaded(good, bad))

    def _look(self, load: PageLoad, arena: SimArena, deadline_ns: int) -> None:
        """Copy the page if it is there, wait if it is to come."""
        page = load.pool_page
        if self.loading.get(page) is not load or page in self._copying:
            return  # that one is over
        state = arena.promise(load.arena_page, load.generation)
        if state is PageState.READY:
            self._copying.add(page)
            random = self._random
            is_slow = random.random() < SLOW_LOAD_SHARE
            delay_ns = random.randrange(SLOW_LOAD_NS if is_slow else self._load_ns) + 1
            self._host.later(delay_ns, partial(self._copy, load, arena))
        elif state is PageState.FILLING and self._host.now_ns < deadline_ns:
            look = partial(self._look, load, arena, deadline_ns)
            life = self._host.life
            arena.watch(load.arena_page, lambda: self._host.run(life, look))
        else:
            self._host.later(0, partial(self._settle, page, is_good=False))
            self._copying.add(page)

    def _copy(self, load: PageLoad, arena: SimArena) -> None:
        """The bytes are those promised if the word is still the same afterwards."""
        content = arena.content(load.arena_page)
        is_good = arena.promise(load.arena_page, load.generation) is PageState.READY
        is_good &= self._random.random() >= BAD_COPY_SHARE
        if is_good:
            self.memory[load.pool_page] = content
        self._settle(load.pool_page, is_good=is_good)

    def _settle(self, page: int, *, is_good: bool) -> None:
        del self.loading[page]
        self._copying.discard(page)
        self.late.discard(page)
        self._waiter.on_landed(page, is_good=is_good)
        self._on_moved(Loaded([page], []) if is_good else Loaded([], [page]))

    def _store(
        self, write: BlockWrite, arena: SimArena | None, epoch: int, sums: list[int]
    ) -> None:
        """Copy page by page, whichever block has the page by then."""
        if arena is None or self.arena is not arena or self.epoch != epoch:
            self._on_moved(Stored({write.number: []}))
            return
        if len(sums) == self._model.num_layers:
            self._on_moved(Stored({write.number: sums}))
            return
        layer = len(sums)
        kind, origin, tokens = self.memory.get(write.pool_pages[layer], GARBAGE)
        content = kind, origin, tokens[: len(write.tokens)] if write.is_partial else tokens
        if self._model.is_rounded and origin[:1] == (IMAGE,):
            content = GARBAGE
        arena.put(write.arena_pages[layer], content)
        copied = checksum(arena.pages[write.arena_pages[layer]].data)
        later = partial(self._store, write, arena, epoch, [*sums, copied])
        is_slow = self._random.random() < SLOW_STORE_SHARE
        self._host.later(self._random.randrange(SLOW_STORE_NS if is_slow else STORE_NS) + 1, later)
