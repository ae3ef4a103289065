"""A host's shared memory in the simulation: the production arena's words and pages, without a file.

A page's content is named by what it is the KV of (`memory.Content`). A page's bytes are the number
of its content, so that it goes through arenas, disks, peers and object stores as bytes do.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from loadtest.sim.memory import GARBAGE, Content
from loadtest.sim.timeline import Action
from shared.arena import ArenaView, Bytes, PageState

PAGE_BYTES = 64


class Contents:
    """The contents of all pages of one deployment, numbered as they come."""

    def __init__(self) -> None:
        self._contents: list[Content] = [GARBAGE]
        self._number_of: dict[Content, int] = {GARBAGE: 0}

    def page(self, content: Content) -> Bytes:
        """uint8 ``[PAGE_BYTES]``: what a page of this content holds."""
        page = np.zeros(PAGE_BYTES // 8, np.uint64)
        page[0] = self.number(content)
        return page.view(np.uint8)

    def number(self, content: Content) -> int:
        number = self._number_of.setdefault(content, len(self._contents))
        if number == len(self._contents):
            self._contents.append(content)
        return number

    def of_page(self, page: Bytes) -> Content:
        """What these bytes are; garbage where they are no page's."""
        number = int(page.view(np.uint64)[0])
        is_whole = number < len(self._contents) and not page[8:].any()
        return self._contents[number] if is_whole else GARBAGE


class SimArena(ArenaView):
    """Attributes:
    identity: of this memory, as of a file's: a later one under the same path has another.
    """

    def __init__(self, path: Path, num_pages: int, contents: Contents) -> None:
        pages = np.zeros((num_pages, PAGE_BYTES), np.uint8)
        super().__init__(path, np.zeros(num_pages, np.uint64), pages)
        self.identity = (0, id(self))
        self.filled = np.array([num_pages], np.uint64)
        self._numbers = pages.view(np.uint64)[:, 0]
        self._contents = contents
        self._waiting: dict[int, list[Action]] = {}

    def set_word(self, page: int, generation: int, state: PageState) -> None:
        old, _ = self.word(page)
        assert generation > old if state is PageState.FILLING else generation == old
        super().set_word(page, generation, state)
        self._wake([page])

    def set_words(self, pages: list[int], generations: list[int], state: PageState) -> None:
        assert len({*pages}) == len(pages)
        super().set_words(pages, generations, state)
        self._wake(pages)

    def content(self, page: int) -> Content:
        """What the page holds."""
        return self._contents.of_page(self.pages[page])

    def put(self, page: int, content: Content) -> None:
        """Write a page."""
        self.pages[page] = 0
        self._numbers[page] = self._contents.number(content)

    def watch(self, page: int, action: Callable[[], None]) -> None:
        """Run `action` when the page's word changes."""
        self._waiting.setdefault(page, []).append(action)

    def _wake(self, pages: Iterable[int]) -> None:
        for page in pages:
            for action in self._waiting.pop(page, ()):
                action()
