"""An arena asks for memory before it needs it, and seldom."""

from services.kvstore.core import GrowArena
from services.kvstore.core.base.effects import Effect
from services.kvstore.core.base.tier_sizes import AHEAD_BYTES_MIN
from services.kvstore.core.tiers.arena_tier import ArenaTier

PAGE_BYTES = 1 << 20
NUM_FIRST = AHEAD_BYTES_MIN // PAGE_BYTES


def asked(effects: list[Effect]) -> list[int]:
    return [effect.num_pages for effect in effects if isinstance(effect, GrowArena)]


def take(arena: ArenaTier, num_pages: int) -> tuple[int, list[int]]:
    """How many pages it gave, and what it asked for."""
    effects: list[Effect] = []
    pages = arena.take(num_pages, lambda _: True, 0, effects)
    return len(pages), asked(effects)


def test_it_asks_when_half_of_what_is_ahead_is_used_and_once() -> None:
    arena = ArenaTier(NUM_FIRST, PAGE_BYTES)
    assert take(arena, NUM_FIRST // 2) == (NUM_FIRST // 2, [])
    assert take(arena, 1) == (1, [NUM_FIRST + NUM_FIRST // 2 + 1])
    assert take(arena, 1) == (1, [])
    arena.grow(NUM_FIRST + NUM_FIRST // 2 + 1)
    assert take(arena, 1) == (1, [])


def test_what_one_call_lacks_is_asked_for_at_once() -> None:
    arena = ArenaTier(NUM_FIRST, PAGE_BYTES)
    assert take(arena, 4 * NUM_FIRST) == (NUM_FIRST, [8 * NUM_FIRST])


def test_it_asks_seldom_until_it_is_full() -> None:
    arena, num_asked = ArenaTier(NUM_FIRST, PAGE_BYTES), 0
    capacity = 100 * 1024  # pages: 100 GiB
    for _ in range(capacity):
        num, wanted = take(arena, 1)
        assert num == 1, "memory came in time"
        num_asked += len(wanted)
        if wanted:
            arena.grow(min(wanted[-1], capacity))
    assert arena.num_pages == capacity and num_asked < 60
    assert take(arena, 1)[0] == 0


def test_an_arena_that_is_used_again_and_again_asks_for_no_more() -> None:
    arena = ArenaTier(NUM_FIRST, PAGE_BYTES)
    for _ in range(10):
        effects: list[Effect] = []
        pages = arena.take(NUM_FIRST // 2, lambda _: True, 0, effects)
        arena.give(pages, effects)
        assert not asked(effects)
