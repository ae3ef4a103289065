"""``python -m services.worker.device.assist.helper PARENT_PID FILE`` and the numbers of a
`ChannelShape`: compute what adapters add, on one core, until it is killed or its parent ends.

It sleeps on stdin between passes, and follows the words of its channel during one.
"""

import ctypes
import os
import pickle
import resource
import select
import signal
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.sgmv import Segments, Site, add_lora, warm_up
from services.worker.core.step import ImageEntry
from services.worker.device.assist.channel import (
    IDLE_NS,
    READY,
    SPEC_LETTER,
    Channel,
    ChannelShape,
    Order,
    Outcome,
)
from services.worker.device.assist.orders import ArenaFile, AssistedImage, Pass, Spec
from services.worker.device.assist.sharing import most_ns, rows_per_core
from services.worker.device.assist.waiting import wait_for
from services.worker.device.lora.tables import LoraLines, segments_of
from shared.adapters.layout import SAME_LAYER, ImageLayout, layout_image
from shared.arena import Arena, ArenaError, Pages, Words, ready_words
from shared.runtime.dying import die_with_parent
from shared.wire.messages import LoraCard

LORA_RANK = 16
ROUNDS = 5


def profile(spec: Spec) -> int:
    """How many rows one core is given before another one helps: in the site with the most weights,
    at a common rank."""
    site_number = max(
        range(len(spec.sites)), key=lambda site: spec.num_in(site) + spec.num_out(site)
    )
    site, num_in = spec.sites[site_number], spec.num_in(site_number)
    known = (*spec.card.targets, *spec.card.outer)
    rank = min(LORA_RANK, spec.card.rank_max)
    ranks = {known[target].name: rank for target in site.targets}
    num_blocks = layout_image(spec.card, ranks).num_blocks
    elements = spec.card.page_bytes // spec.card.element_bytes
    pool = torch.zeros(num_blocks, elements, dtype=spec.dtype)
    lines = LoraLines(spec.card)
    pages = np.repeat(np.arange(num_blocks, dtype=np.int32)[:, None], spec.card.num_layers, 1)
    lines.enter([ImageEntry(0, "", ranks, pages)])
    x = torch.randn(spec.tokens_max, num_in).to(spec.dtype)
    y = torch.zeros(spec.tokens_max, spec.num_out(site_number))
    times_ns: dict[int, int] = {}
    num_rows = 1
    while num_rows <= spec.tokens_max:
        segments = segments_of(np.zeros(num_rows, np.int32))
        took_ns = []
        for _ in range(ROUNDS):
            started_ns = time.perf_counter_ns()
            add_lora(x[:num_rows], y[:num_rows], pool, 0, site, segments, lines.tables)
            took_ns.append(time.perf_counter_ns() - started_ns)
        times_ns[num_rows] = min(took_ns)
        if times_ns[num_rows] > most_ns(times_ns[1]):
            break
        num_rows *= 2
    return rows_per_core(times_ns)


@dataclass(frozen=True, slots=True)
class ArenaPages:
    """Where an image lies.

    Attributes:
        pages: ``[num_layers, num_blocks]``.
        words: ``[num_layers, num_blocks]``, of the arena while it holds the image.
    """

    image: AssistedImage
    pages: Pages
    words: Words
    _layout: ImageLayout
    _places: dict[tuple[int, Site], tuple[Pages, Words]] = field(default_factory=dict)

    @classmethod
    def of(cls, card: LoraCard, image: AssistedImage) -> "ArenaPages":
        """An image's."""
        return cls(
            image,
            np.array(image.pages, np.int64),
            ready_words(image.generations),
            layout_image(card, image.ranks),
        )

    def are_in(self, arena: Arena) -> bool:
        """Whether an arena has pages of these numbers."""
        return bool(self.pages.min() >= 0 and self.pages.max() < arena.num_pages)

    def are_there(self, arena: Arena, layer: int, site: Site) -> bool:
        """Whether all pages that a site's weights in this layer are in hold the promised bytes."""
        known = self._places.get((layer, site))
        if known is None:
            known = self._places[layer, site] = self._find(layer, site)
        return arena.hold(*known)

    def _find(self, layer: int, site: Site) -> tuple[Pages, Words]:
        """Pages that a site's weights in this layer are in, and their words."""
        places = {(layer, 0)}  # the scales
        for number in site.targets:
            of = self._layout.targets[number]
            for tile in (*of.a, *of.b):
                places.add((layer if tile.layer == SAME_LAYER else tile.layer, tile.block))
        layers, blocks = np.array(sorted(places), np.int64).T
        return self.pages[layers, blocks], self.words[layers, blocks]


LET_GO_S = 10.0  # without a pass: memory of an arena that has been replaced is held no longer
PR_SET_TIMERSLACK = 29
WAKES = 4096  # read at once


def main(parent: int, file_number: int, shape: ChannelShape) -> None:
    """Work until stdin ends."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # naps are as short as they say
    # Whatever a library prints goes to the log.
    parent_hears = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    channel = Channel.attach(file_number, shape)
    letter = channel.read_letter(SPEC_LETTER)
    assert letter is not None, "what it works for was posted before it was started"
    spec: Spec = pickle.loads(letter)
    warm_up(spec.dtype, torch.float32)
    helper = Helper(channel, spec)
    os.write(parent_hears, READY.pack(spec.rows_max or profile(spec)))
    while _sleep(helper):
        helper.serve()


def _sleep(helper: "Helper") -> bool:
    """Until the next pass; False: there will be none."""
    if not select.select([0], [], [], LET_GO_S)[0]:
        helper.let_go()
    return bool(os.read(0, WAKES))


class Helper:
    """Computes orders of one channel after another."""

    def __init__(self, channel: Channel, spec: Spec) -> None:
        self._channel = channel
        self._spec = spec
        self._inputs = torch.from_numpy(channel.inputs).view(spec.dtype)
        self._outputs = torch.from_numpy(channel.outputs)
        self._lines = LoraLines(spec.card)
        self._entered: dict[int, ArenaPages] = {}  # lines of the tables
        self._letter = SPEC_LETTER  # the last one
        self._answered = 0
        # By letter, and by line, of the passes that may still ask.
        self._passes: dict[int, dict[int, ArenaPages]] = {}
        self._file: ArenaFile | None = None
        self._arena: Arena | None = None
        self._pool = torch.empty(0)

    def serve(self) -> None:
        """One pass: until it is over, or long nothing was asked."""
        channel = self._channel
        bell = None if self._spec.is_streamed else channel.called
        while wait_for(self._is_called, time.monotonic_ns() + IDLE_NS, bell):
            if channel.letter_number > self._letter:
                self._read_letter(channel.letter_number)
            if (number := channel.asked) != self._answered:
                order = channel.read_order(number)
                outcome = self._compute(number, order)
                channel.answer(number, order.letter, outcome)
                self._answered = number
            elif not channel.is_awake:
                return

    def let_go(self) -> None:
        """Hold no arena: the next pass names it."""
        self._file = self._arena = None
        self._pool = torch.empty(0)
        self._passes = {}

    def _is_called(self) -> bool:
        channel = self._channel
        return (
            channel.asked != self._answered
            or channel.letter_number > self._letter
            or not channel.is_awake
        )

    def _read_letter(self, number: int) -> None:
        """A pass begins."""
        letter = self._channel.read_letter(number)
        if letter is None:  # another one takes its place
            return
        announced: Pass = pickle.loads(letter)
        self._letter = max(number, self._letter)
        there = self._use(announced.arena)  # else what it had for others is gone with their arena
        while len(self._passes) >= self._spec.passes_max:
            del self._passes[min(self._passes)]
        its_pages = self._passes[number] = {}
        if not there or self._arena is None:
            return
        for line, image in announced.images.items():
            pages = self._enter(line, image)
            if pages.are_in(self._arena):
                its_pages[line] = pages

    def _enter(self, line: int, image: AssistedImage) -> ArenaPages:
        """See that an image is in the tables."""
        pages = self._entered.get(line)
        if pages is None or pages.image != image:
            pages = ArenaPages.of(self._spec.card, image)
            of_blocks = pages.pages.T.astype(np.int32)
            entry = ImageEntry(line, image.adapter_hash, image.ranks, of_blocks)
            self._lines.enter([entry])
            self._entered[line] = pages
        return pages

    def _use(self, file: ArenaFile) -> bool:
        """Map an arena, unless it is mapped; whether it is."""
        if file == self._file:
            return True
        self.let_go()
        try:
            arena = Arena.attach(file.path)
        except (OSError, ArenaError):
            return False
        if arena.identity != file.identity or arena.page_bytes != self._spec.card.page_bytes:
            return False
        self._file, self._arena = file, arena
        self._pool = torch.from_numpy(arena.pages).view(self._spec.dtype)
        return True

    def _compute(self, number: int, order: Order) -> Outcome:
        if order.letter not in self._passes:  # that came just now, too
            self._read_letter(order.letter)
        its_pages = self._passes.get(order.letter, {})
        if self._arena is None:
            return Outcome.REFUSED
        # They may be those of a later order by now: then the answer to this one is ignored.
        segments = segments_of(self._channel.read_lines(number, order.num_rows))
        lines = set(segments.lines.tolist())
        if not lines <= its_pages.keys():
            return Outcome.REFUSED
        site, pages = self._spec.sites[order.site], [its_pages[line] for line in lines]
        if not self._are_there(pages, order.layer, site):
            return Outcome.REFUSED
        self._add(order, site, segments)
        # Another look, as the bytes may have changed under the hands.
        return Outcome.DONE if self._are_there(pages, order.layer, site) else Outcome.REFUSED

    def _are_there(self, pages: list[ArenaPages], layer: int, site: Site) -> bool:
        assert self._arena is not None
        return all(each.are_there(self._arena, layer, site) for each in pages)

    def _add(self, order: Order, site: Site, segments: Segments) -> None:
        spec, num_rows = self._spec, order.num_rows
        x = _rows(self._inputs, num_rows, spec.num_in(order.site))
        y = _rows(self._outputs, num_rows, spec.num_out(order.site))
        y.zero_()
        add_lora(x, y, self._pool, order.layer, site, segments, self._lines.tables)


def _rows(flat: torch.Tensor, num_rows: int, width: int) -> torch.Tensor:
    return flat[: num_rows * width].view(num_rows, width)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(numbers[0], numbers[1], ChannelShape(*numbers[2:]))
