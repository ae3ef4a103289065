"""A host's shared memory in the simulated cluster: words alone, nothing is in its pages."""

from collections.abc import Callable

from loadtest.sim.timeline import Action
from shared.arena import PageState


class ClusterArena:
    """Attributes:
    words: of each page its generation and state.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.words = [(0, PageState.FREE)] * num_pages
        self._waiting: dict[int, list[Action]] = {}

    def set_words(self, pages: list[int], generations: list[int], state: PageState) -> None:
        """Publish states: readers that watch a page see it from now on."""
        words, waiting = self.words, self._waiting
        for page, generation in zip(pages, generations, strict=True):
            words[page] = (generation, state)
        if waiting:
            for page in pages:
                for action in waiting.pop(page, ()):
                    action()

    def watch(self, page: int, action: Callable[[], None]) -> None:
        """Run `action` when the page's word changes."""
        self._waiting.setdefault(page, []).append(action)
