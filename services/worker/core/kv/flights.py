"""Which pool pages are loading, for whom, and when they will probably be there."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.worker.core.kv.pages import NO_PAGE, Block, Pages

NO_LAYER = -1
CALL_BACK_NS = 100_000_000  # what was called back so long ago was in a thread's hands: it comes
MARGIN = 1.25  # what is to come takes so much longer, to be on the safe side


@dataclass(slots=True)
class Flight:
    """Why some pages of a block are loading."""

    block: Block
    ticket: int
    called_back_at_ns: int = 0


@dataclass(slots=True)
class Flights:
    """Args:
    num_pages: of the pool.
    """

    num_pages: int
    num_layers: int
    _flights: dict[int, Flight] = field(default_factory=dict)  # by pool page
    _prefetches: dict[int, Flight] = field(default_factory=dict)  # those of prefetches
    _layer: npt.NDArray[np.int16] = field(init=False)  # of each page; `NO_LAYER`: not under way
    _ready_at_ns: npt.NDArray[np.int64] = field(init=False)  # promised for each page
    _num_demanded: npt.NDArray[np.int64] = field(init=False)  # pages of each layer
    _is_prefetch: npt.NDArray[np.bool_] = field(init=False)  # each page

    def __post_init__(self) -> None:
        self._layer = np.full(self.num_pages, NO_LAYER, np.int16)
        self._ready_at_ns = np.zeros(self.num_pages, np.int64)
        self._num_demanded = np.zeros(self.num_layers, np.int64)
        self._is_prefetch = np.zeros(self.num_pages, np.bool_)

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, page: int) -> bool:
        return page in self._flights

    @property
    def pages(self) -> list[int]:
        """All of them."""
        return list(self._flights)

    def begin(self, flights: list[Flight], table: Pages, ready_at_ns: Sequence[int]) -> None:
        """Loads that a turn waits for begin.

        Args:
            flights: of each block.
            table: [blocks, num_layers]: the page that each is to have, `NO_PAGE` where it has one.
            ready_at_ns: for each layer, when its pages are promised to be in the arena.
        """
        begins = table != NO_PAGE
        layers = np.broadcast_to(np.arange(self.num_layers, dtype=np.int16), table.shape)
        self._layer[table[begins]] = layers[begins]
        self._ready_at_ns[table[begins]] = np.broadcast_to(ready_at_ns, table.shape)[begins]
        self._num_demanded += begins.sum(axis=0)
        for flight, row in zip(flights, table.tolist(), strict=True):
            self._flights.update(dict.fromkeys(row, flight))
        self._flights.pop(NO_PAGE, None)

    def begin_prefetch(
        self, flights: list[Flight], layer: int, pages: list[int], ready_at_ns: int
    ) -> None:
        """Loads of pages of one layer begin that no turn waits for yet."""
        self._layer[pages] = layer
        self._ready_at_ns[pages] = ready_at_ns
        self._prefetches.update(zip(pages, flights, strict=True))
        self._flights.update(zip(pages, flights, strict=True))
        self._is_prefetch[pages] = True

    def end(self, pages: list[int]) -> list[Flight]:
        """Of each page: its load ended."""
        flights = list(map(self._flights.pop, pages))
        demanded = pages
        if self._prefetches:
            demanded = [page for page in pages if self._prefetches.pop(page, None) is None]
        if demanded:
            self._num_demanded -= np.bincount(self._layer[demanded], minlength=self.num_layers)
        self._layer[pages] = NO_LAYER
        self._is_prefetch[pages] = False
        return flights

    @property
    def num_prefetching(self) -> int:
        """Pages for announced sessions; turns wait for all others."""
        return len(self._prefetches)

    def call_back(self, num_pages: int, now_ns: int) -> list[int] | None:
        """Those of prefetches whose blocks are not in use, but for those that were called back
        before; None if all that may be given are fewer than so many."""
        unused = {
            page: flight
            for page, flight in self._prefetches.items()
            if not flight.block.refs and not 0 < flight.called_back_at_ns <= now_ns - CALL_BACK_NS
        }
        if len(unused) < num_pages:
            return None
        pages = [page for page, flight in unused.items() if not flight.called_back_at_ns]
        for page in pages:
            unused[page].called_back_at_ns = now_ns
        return pages

    def of(self, table: Pages) -> list[list[int]]:
        """Pages of a table [blocks, num_layers] that are loading, by layer."""
        under_way = self._layer[table] != NO_LAYER
        return [pages[at].tolist() for pages, at in zip(table.T, under_way.T, strict=True)]

    def arrivals(self, table: Pages, page_ns: float, now_ns: int) -> list[int]:
        """For each layer, when the last page of a table [blocks, num_layers] will probably be
        there; 0 where none is under way. Lower layers come first, whatever waits for them, and what
        was begun as a prefetch comes behind all that; no page is copied before it is in the arena.

        Args:
            page_ns: of one copy.
        """
        under_way = self._layer[table] != NO_LAYER
        num_own = under_way.sum(axis=0)
        num_ahead = np.maximum(self._num_demanded.cumsum(), num_own.cumsum())
        num_last = self._num_demanded.sum() + num_own.cumsum()
        is_last = (under_way & self._is_prefetch[table]).any(axis=0)
        num_ahead = np.where(is_last, num_last, num_ahead)
        ready_at_ns = np.where(under_way, self._ready_at_ns[table], 0).max(axis=0, initial=0)
        wait_ns = np.maximum(ready_at_ns - now_ns, 0) + num_own * page_ns
        at_ns = now_ns + MARGIN * np.maximum(wait_ns, num_ahead * page_ns)
        latest_ns = np.maximum.accumulate(np.where(num_own > 0, at_ns, 0.0))
        arrivals: list[int] = np.where(num_own > 0, latest_ns, 0.0).astype(np.int64).tolist()
        return arrivals
