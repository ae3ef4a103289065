"""What is in pages, by what it is the KV of. Bytes are not modelled: their origin is.

An origin names the tenant, the model and every token up to its end, as the worker that computed it
knew them, never by a block key: so a key that names too little is detected.
"""

from typing import NamedTuple

from services.worker.core.effects import PageLoads

Origin = tuple[object, ...]
Content = tuple[int, Origin, tuple[int, ...]]  # layer, of what it continues, the block's tokens

GARBAGE: Content = (-1, (), ())


IMAGE = "image"  # what an adapter's pages are of


def next_origin(origin: Origin, tokens: tuple[int, ...]) -> Origin:
    """What the block behind one of these tokens continues."""
    return (hash((origin, tokens)),)


def image_page(adapter_hash: str, layer: int, number: int) -> Content:
    """What a page of an adapter's image holds: block `number` of it, in one layer."""
    return (layer, (IMAGE, adapter_hash), (number,))


class PageLoad(NamedTuple):
    """One page of a run of loads."""

    arena_page: int
    generation: int
    pool_page: int
    epoch: int
    ready_at_ns: int


def each_page(run: PageLoads) -> list[PageLoad]:
    """A run, page by page."""
    pages = zip(run.arena_pages, run.generations, run.pool_pages, strict=True)
    return [PageLoad(*page, run.epoch, run.ready_at_ns) for page in pages]
