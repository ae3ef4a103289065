"""Adapters on the device: the images of those that turns run on, or are about to.

An image (`shared.adapters.layout`) is a chain of blocks like a turn's history, in pages of the same
pool, and `residency` loads it. One image serves every turn of its adapter. It is needed as a
whole, though a pass may begin before its later layers are here (`streaming`); what the kvstore does
not have is built from the adapter's files, and goes below like blocks that were computed. An image
that no turn runs on is clean pages that any turn may take.

An adapter's way: `use` by a turn that came; `prepare`, which asks the kvstore, for those whose turn
is near; `bring`, when the turn could be admitted, which takes the pages; `start` when it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from services.worker.core.adapters.image import NO_LINE, AdapterUse, Image, KnownAdapters
from services.worker.core.adapters.loading import ImageLoading
from services.worker.core.adapters.stats import AdapterStats, Source
from services.worker.core.adapters.streaming import FirstPass
from services.worker.core.effects import Effect, ReleaseTicket, StageImage
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.residency import Chain, Residency
from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey
from shared.owners import NO_OWNER, OwnerKey
from shared.wire.messages import AdapterRef

AHEAD_MAX = 8  # images loading that no turn runs on yet
# Before each further attempt to load one; after the last its turns fail.
# A kvstore that is only starting knows no files yet: no turn should fail because of that.
PAUSES_NS = (0, 250_000_000, 1_000_000_000, 3_000_000_000, 6_000_000_000)
WISHES_MAX = 1024  # announced, and not answered for


class Readiness(Enum):
    """Whether a turn can run as far as its adapter is concerned."""

    READY = "ready"
    COMING = "coming"
    SHORT = "short"  # of pages
    LOST = "lost"  # loading it failed again and again


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An adapter of an announced turn of this session, while the kvstore is asked."""

    keys: list[BlockKey]
    adapter: AdapterRef
    expected: Expected


@dataclass(slots=True)
class Adapters:
    """Attributes:
    lines_max: of the executor's adapter tables.
    images: by hash, those that turns want.
    _ahead: by number, those of them that are here or loading and that no turn runs on.
    _streamed: by number, those that turns run on and that are not all here.
    _paused: by number, when those that failed are tried again.
    """

    residency: Residency
    loading: ImageLoading
    lines_max: int
    images: dict[str, Image] = field(default_factory=dict)
    stats: AdapterStats = field(default_factory=AdapterStats)
    _by_number: dict[int, Image] = field(default_factory=dict)
    _last_number: int = 0
    _wishes: dict[int, _Wanted] = field(default_factory=dict)  # by number, too
    _lines: list[int] = field(init=False)  # free ones
    _ahead: dict[int, Image] = field(default_factory=dict)
    _streamed: dict[int, Image] = field(default_factory=dict)
    _paused: dict[int, int] = field(default_factory=dict)
    _known: KnownAdapters = field(default_factory=KnownAdapters)

    def __post_init__(self) -> None:
        self._lines = list(range(self.lines_max - 1, -1, -1))  # low ones first: tables stay small

    # A turn wants it.

    def use(self, use: AdapterUse, now_ns: int) -> list[Effect]:
        """A turn has come, on an adapter or not."""
        adapter = use.ref
        if adapter is None:
            return []
        image = self.images.get(adapter.adapter_hash)
        if image is None:
            image = self._add(adapter, use.num_image_blocks)
        image.users.add(use)
        use.image = image
        effects = self.prepare([use], now_ns)
        use.start = "resident" if image.is_ready else "waited"
        return effects

    def prepare(self, uses: Iterable[AdapterUse], now_ns: int) -> list[Effect]:
        """Ask for what these turns will need, in this order, as far as not too much is under way
        already."""
        effects: list[Effect] = []
        for use in uses:
            if len(self._ahead) >= AHEAD_MAX:
                break
            image = use.image
            if image is None or image.running or image.number in self._ahead:
                continue
            if image.number not in self._paused:
                self._ahead[image.number] = image
                effects += self.loading.look_up(image, now_ns)
        return effects

    def on_staged(
        self, number: int, staged: Staged | None, num_reserved: int, now_ns: int
    ) -> list[Effect]:
        """The kvstore's answer to `StageImage`; None if it could not be asked.

        Args:
            num_reserved: pages to leave to others.
        """
        if (wanted := self._wishes.pop(number, None)) is not None:
            return self._on_wish_staged(wanted, staged, now_ns)
        image = self._by_number.get(number)
        if image is None:
            return [] if staged is None else [ReleaseTicket(staged.ticket)]
        effects = self.residency.stage(image.chain, staged)
        image.must_build = not (image.chain.is_asked or image.chain.staged)
        # Where there are free pages, its turn need not come to ask for them.
        num_pages = len(image.chain.missing) * self.residency.pool.num_layers
        if self.residency.pool.num_free >= num_pages + num_reserved:
            effects += self.loading.fetch(image, now_ns)
        return effects

    def num_pages_wanted(self, use: AdapterUse) -> int:
        """Pages that its adapter's image still needs."""
        if use.image is None:
            return 0
        return len(use.image.chain.missing) * self.residency.pool.num_layers

    def bring(
        self,
        use: AdapterUse,
        num_reserved: int,
        first: FirstPass,
        now_ns: int,
        effects: list[Effect],
    ) -> Readiness:
        """Get on with the adapter of a turn that could be admitted.

        Args:
            num_reserved: pages to leave to others.
            effects: what is to be done is added here.
        """
        image = use.image
        if image is None:
            return Readiness.READY
        effects += self.prepare([use], now_ns)
        residency, chain = self.residency, image.chain
        if not self.loading.settle(image):
            if image.running:
                return Readiness.COMING  # until those that run on it have left
            self._start_over(image, now_ns, effects)
        if image.num_failures > len(PAUSES_NS):
            return Readiness.LOST
        if not (image.running or image.number in self._ahead):
            return Readiness.COMING  # others are loaded first, or it is tried again later
        if image.num_failures and self.loading.has_remains(image):
            return Readiness.COMING  # what fails of the last try must not fail this one
        if chain.missing and not (chain.is_asked or chain.staged or image.must_build):
            effects += self.loading.look_up(image, now_ns)
        if chain.is_asked:
            return Readiness.COMING
        if chain.coming:
            may_begin = self.loading.may_begin(use, image, first, now_ns)
            return Readiness.READY if may_begin else Readiness.COMING
        if not chain.missing:
            return Readiness.READY
        if residency.num_available < self.num_pages_wanted(use) + num_reserved:
            return Readiness.SHORT
        effects += self.loading.fetch(image, now_ns)
        return Readiness.COMING

    def on_loaded(self, now_ns: int) -> list[Effect]:
        """Loads or builds ended. What was built whole goes below."""
        effects: list[Effect] = []
        for image in [*self._ahead.values(), *self._streamed.values()]:
            if not image.chain.coming:
                continue
            source: Source = "files" if image.built else "kvstore"
            is_good = self.loading.settle(image)
            if is_good and image.is_ready:
                self.stats.on_loaded(source, now_ns - image.since_ns)
                image.num_failures = 0
                self._streamed.pop(image.number, None)
            if image.is_wished and not (is_good and image.chain.coming):
                image.is_wished = False
                effects += [] if image.users else self._let_go(image)
        return effects

    def on_time(self, now_ns: int) -> None:
        """Wait no longer for answers that are overdue, nor behind a failure."""
        for number in [each for each, at_ns in self._paused.items() if at_ns <= now_ns]:
            del self._paused[number]
        for image in self._ahead.values():
            if image.chain.is_asked:
                image.chain.on_time(now_ns)
                image.must_build = not image.chain.is_asked

    # It is expected.

    def expect(self, expected: Expected) -> list[Effect]:
        """A session's turn was announced: like the session's blocks, its adapter's image is loaded
        where there are free pages, and stays idle until the turn is there."""
        adapter = expected.adapter
        if adapter is None:
            return []
        keys = self.loading.keys(adapter, expected.num_image_blocks)
        if not self.loading.write_behind.is_connected or self.residency.has_all(keys):
            return []
        self._last_number += 1
        self._wishes[self._last_number] = _Wanted(keys, adapter, expected)
        if len(self._wishes) > WISHES_MAX:
            del self._wishes[next(iter(self._wishes))]
        return [StageImage(self._last_number, adapter.adapter_hash, keys, expected.tenant)]

    def unexpect(self, owner: OwnerKey) -> None:
        """An announcement was withdrawn: what the kvstore answers for it is released."""
        for number in [at for at, each in self._wishes.items() if each.expected.owner == owner]:
            del self._wishes[number]

    def _on_wish_staged(self, wanted: _Wanted, staged: Staged | None, now_ns: int) -> list[Effect]:
        if staged is None:
            return []
        pool, name = self.residency.pool, wanted.adapter.adapter_hash
        effects: list[Effect]
        if staged.num_blocks == len(wanted.keys):
            stager, expected = self.residency.stager, wanted.expected
            hint = expected.owner, name
            effects = stager.expect(staged, hint, NO_OWNER, expected, now_ns, is_indivisible=True)
            return effects + stager.pump(now_ns)
        effects = [ReleaseTicket(staged.ticket)] if staged.ticket else []
        has_room = pool.num_free >= len(wanted.keys) * pool.num_layers
        if name in self.images or len(self._ahead) >= AHEAD_MAX or not has_room:
            return effects  # its turn is here, or will have it built
        image = self._add(wanted.adapter, len(wanted.keys))
        image.is_wished = image.must_build = True
        image.since_ns = now_ns
        self._ahead[image.number] = image
        self.residency.want(image.chain)
        effects += self.loading.fetch(image, now_ns)
        return effects if image.chain.coming else effects + self._let_go(image)

    # A turn runs on it.

    def start(self, use: AdapterUse) -> None:
        """A turn was admitted."""
        if (image := use.image) is None:
            return
        assert not image.chain.missing, "its adapter is not here"
        if image.chain.coming:
            self._streamed[image.number] = image
            use.start = "assisted" if image.is_assisted else "streamed"
        if image.line == NO_LINE:
            image.line, image.is_reported = self._lines.pop(), False
        image.running.add(use)
        self._ahead.pop(image.number, None)
        self._note(image)

    def is_good(self, use: AdapterUse) -> bool:
        """Whether a turn that runs can go on; False: it has to stop and to wait for its adapter."""
        image = use.image
        if image is None or not image.chain.coming:
            return True
        return self.loading.settle(image) and not self.residency.is_late(image.chain)

    def on_failed(self, use: AdapterUse) -> None:
        """A row of this turn found something not there."""
        image = use.image
        if image is not None and image.chain.coming:
            self.residency.put_off(image.chain)
            use.start = "waited"

    def streams(self, uses: Iterable[AdapterUse]) -> dict[int, list[list[int]]]:
        """What a pass of these turns has to wait for: by line, for each layer, pages."""
        awaited = {
            image.line: self.residency.awaited(image.chain) for image in self._coming_for(uses)
        }
        return {line: pages for line, pages in awaited.items() if any(pages)}

    def assists(self, uses: Iterable[AdapterUse]) -> dict[int, Staged]:
        """By line, from where a pass of these turns can compute what is not here."""
        stager = self.residency.stager
        return {
            image.line: image.source
            for image in self._coming_for(uses)
            if image.is_assisted and image.source is not None and stager.holds(image.source.ticket)
        }

    def _coming_for(self, uses: Iterable[AdapterUse]) -> list[Image]:
        """Loading images that these turns run on, each once."""
        if not self._streamed:
            return []
        wanted = dict.fromkeys(use.image for use in uses)
        return [image for image in wanted if image is not None and image.chain.coming]

    def stop(self, use: AdapterUse) -> None:
        """A turn runs no more, for now or for good; no step in flight has a row of it."""
        image = use.image
        if image is None or use not in image.running:
            return
        image.running.remove(use)
        if not image.running:
            self._lines.append(image.line)
            image.line = NO_LINE
            self._ahead[image.number] = image
            self._streamed.pop(image.number, None)

    def drop(self, use: AdapterUse) -> list[Effect]:
        """A turn is over."""
        self.stop(use)
        image, use.image = use.image, None
        if image is None:
            return []
        image.users.remove(use)
        if image.users:
            return []
        return self._let_go(image)

    def make_room(self, use: AdapterUse) -> list[Effect]:
        """Nothing runs, and pages that other turns' adapters have are in the way of this one."""
        effects: list[Effect] = []
        for image in list(self.images.values()):
            if image is not use.image and image.chain.blocks:
                assert not image.running, "a turn runs on it"
                effects += self._let_go(image)
        return effects

    def give_way(self, effects: list[Effect]) -> bool:
        """A running turn needs pages: take those of an adapter that no turn runs on yet, the one
        that came last; False if none has any."""
        for image in reversed(self._ahead.values()):
            if image.chain.blocks:
                effects += self._let_go(image)
                return True
        return False

    def resident(self) -> list[str]:
        """Hashes of the adapters that are here as a whole, in use or not; the latest used first."""
        return self._known.resident(self.residency.pool)

    def on_first_token(self, use: AdapterUse, duration_ns: int) -> None:
        """A turn has its first token, so long after it arrived."""
        if use.ref is not None:
            self.stats.on_first_token(use.start, duration_ns)

    @property
    def num_pages(self) -> int:
        """Pages of the adapters that turns want."""
        blocks = sum(len(image.chain.blocks) for image in self.images.values())
        return blocks * self.residency.pool.num_layers

    @property
    def next_deadline_ns(self) -> int | None:
        """When an answer of the kvstore is overdue, or one that failed is tried again."""
        chains = [image.chain for image in self._ahead.values()]
        asked = [chain.answer_due_at_ns for chain in chains if chain.is_asked]
        return min([*asked, *self._paused.values()], default=None)

    def _add(self, adapter: AdapterRef, num_blocks: int) -> Image:
        self._last_number += 1
        keys = self.loading.keys(adapter, num_blocks)
        chain = Chain(NO_OWNER, keys, is_indivisible=True)
        image = Image(self._last_number, adapter, num_blocks, chain)
        self.images[adapter.adapter_hash] = self._by_number[image.number] = image
        self._note(image)
        return image

    def _start_over(self, image: Image, now_ns: int, effects: list[Effect]) -> None:
        """Its loads failed: it gives its turn to others until the next attempt."""
        pause_ns = next(islice(PAUSES_NS, image.num_failures, None), 0)
        image.num_failures += 1
        self.stats.num_failures += 1
        image.built, image.must_build = [], False
        effects += self.residency.release(image.chain)
        if pause_ns:
            self._ahead.pop(image.number, None)
            self._paused[image.number] = now_ns + pause_ns

    def _let_go(self, image: Image) -> list[Effect]:
        """What is here of it stays until its pages are needed. Without users it is dropped."""
        self._ahead.pop(image.number, None)
        image.is_wished = False
        if not image.users:
            del self.images[image.adapter.adapter_hash]
            del self._by_number[image.number]
            self._paused.pop(image.number, None)
        effects = self.residency.unstage(image.chain)
        if image.built and not any(block.loading or block.lost for block in image.built):
            self.loading.write(image)  # built, and not settled since
        image.built, image.must_build = [], False
        return effects + self.residency.release(image.chain)

    def _note(self, image: Image) -> None:
        self._known.note(image.adapter.adapter_hash, image.chain.keys[-1])
