"""What the kvstore answered, parsed once, whole: a page that is not in the arena must reach no
thread that copies.
"""

from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey, unpack_keys
from shared.errors import MalformedMessage
from shared.wire.messages import KvLeased, KvRenewed, KvStaged, unpack_ints

PROMISE_MAX_NS = 3_600_000_000_000
SPEED_MAX = 1e15  # bytes/s


def leased_pages(reply: KvLeased, num_arena_pages: int) -> list[int]:
    """The pages of a lease.

    Raises:
        MalformedMessage: they cannot be pages of the arena.
    """
    return _pages(reply.pages, num_arena_pages)


def staged_blocks(
    reply: KvStaged,
    keys: list[BlockKey] | None,
    *,
    num_layers: int,
    num_arena_pages: int,
    epoch: int,
) -> Staged:
    """What is staged.

    Args:
        keys: that were asked for; None: a session was, and the answer names them.

    Raises:
        MalformedMessage: the answer contradicts itself or the question.
    """
    known = _keys(reply.keys, "keys") if keys is None else keys
    count = reply.num_blocks
    if not 0 <= count <= len(known):
        raise MalformedMessage(f"{count} blocks of {len(known)}")
    pages, generations = _pages(reply.pages, num_arena_pages), unpack_ints(reply.generations)
    if not len(pages) == len(generations) == count * num_layers:
        raise MalformedMessage(f"{len(pages)} pages for {count} blocks of {num_layers} layers")
    if not 0 <= reply.num_here <= count:
        raise MalformedMessage(f"{reply.num_here} of {count} blocks are there")
    ready_in_ns = unpack_ints(reply.ready_in_ns, "q")
    if ready_in_ns and len(ready_in_ns) != num_layers:
        raise MalformedMessage(f"promises for {len(ready_in_ns)} of {num_layers} layers")
    if not all(0 <= promise <= PROMISE_MAX_NS for promise in ready_in_ns):
        raise MalformedMessage("a promise is out of bounds")
    rows = [slice(layer * count, (layer + 1) * count) for layer in range(num_layers)]
    return Staged(
        reply.ticket,
        known[:count],
        [pages[row] for row in rows],
        [generations[row] for row in rows],
        reply.num_pages_loading,
        epoch,
        ready_in_ns,
        source_speed(reply.source_bytes_per_s),
        reply.num_here,
        coming_from=reply.coming_from,
    )


def gone_blocks(reply: KvRenewed) -> list[BlockKey]:
    """Of which there is no copy below any more.

    Raises:
        MalformedMessage: they cannot be keys.
    """
    return _keys(reply.gone, "gone")


def source_speed(bytes_per_s: float) -> float:
    """How fast pages are loaded, as the kvstore measured; 0: unknown.

    Raises:
        MalformedMessage: it is no speed.
    """
    if not 0.0 <= bytes_per_s <= SPEED_MAX:
        raise MalformedMessage(f"{bytes_per_s} bytes a second")
    return bytes_per_s


def _keys(packed: str, name: str) -> list[BlockKey]:
    try:
        return unpack_keys(packed)
    except ValueError as error:
        raise MalformedMessage(f"{name}: {error}") from None


def _pages(packed: str, num_arena_pages: int) -> list[int]:
    pages = unpack_ints(packed)
    if pages and not 0 <= min(pages) <= max(pages) < num_arena_pages:
        raise MalformedMessage(f"a page is outside the arena of {num_arena_pages}")
    return pages
