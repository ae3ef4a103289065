"""Prefetches give way: also with pages into which bytes are on their way."""

from services.worker.core.effects import CallBack, LoadPages
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv.pages import NO_PAGE
from shared.ids import SessionId, TenantId, TurnId
from tests.unit.worker.driver import (
    MS,
    NUM_LAYERS,
    Engine,
    announce,
    deltas,
    keys_of,
    names,
    new_core,
    new_turn,
    of_kind,
    staged_blocks,
)

OTHER = list(range(200, 209))  # two blocks and a token


def crowded(num_tokens: int = 7) -> Engine:
    """Four blocks: a turn has two and is about to need another, bytes for an announced session are
    on their way into the pages of the others."""
    engine = Engine(new_core(4))
    engine.core.write_behind.connect(1)
    engine.submit(new_turn("t", list(range(1, num_tokens + 1))))
    engine.core.on_staged(TurnId("t"), 1, None, engine.now_ns)
    engine.step()
    expect(engine, "s2", OTHER)
    assert engine.core.stager.flights.num_prefetching == 2 * NUM_LAYERS
    assert not engine.core.pool.num_available
    return engine


def expect(engine: Engine, session: str, tokens: list[int], tenant: str = "default") -> None:
    """A turn is announced, and the kvstore has its blocks in the arena."""
    announce(engine, SessionId(session), tenant=TenantId(tenant))
    number = max(engine.core.announcements.expecting._asked)
    staged = staged_blocks(number + 4, keys_of(tokens))
    engine.keep(engine.core.on_session_staged(number, staged, engine.now_ns))


def called(engine: Engine) -> list[int]:
    return [page for each in of_kind(engine.effects, CallBack) for page in each.pool_pages]


def test_a_running_turn_calls_them_back_rather_than_to_lose_another_its_pages() -> None:
    engine = crowded()
    engine.step()  # its eighth token fills its second block
    assert engine.plan() is None, "it waits a moment"
    pages = called(engine)
    assert len(pages) == 2 * NUM_LAYERS and not engine.core.planner.num_preemptions
    assert engine.plan() is None and called(engine) == pages, "they are called once"
    expect(engine, "s3", list(range(300, 305)), tenant="b")
    num_loads = len(of_kind(engine.effects, LoadPages))
    engine.keep(engine.core.on_called_back(pages[1:]))
    engine.keep(engine.core.on_loaded(pages[:1], [], engine.now_ns))
    check_integrity(engine.core)
    assert len(of_kind(engine.effects, LoadPages)) == num_loads, "none begins before the turn's"
    assert names(engine.step()) == ["t"]
    assert len(of_kind(engine.effects, LoadPages)) > num_loads, "then others have what is left"
    assert len(deltas(engine.effects)) == 3 and not engine.core.planner.num_preemptions
    check_integrity(engine.core)


def test_what_has_come_of_their_blocks_stays() -> None:
    engine = crowded()
    engine.step()
    assert engine.plan() is None
    first, *rest = called(engine)
    engine.keep(engine.core.on_called_back(rest))
    (block,) = [block for block in engine.core.pool.blocks.values() if block.loading]
    assert engine.core.pool.pages_of(block) == [first, NO_PAGE]
    engine.keep(engine.core.on_loaded([first], [], engine.now_ns))
    assert block.group and block.num_present == 1, "anybody may take it"
    check_integrity(engine.core)


def test_a_turn_that_came_for_a_block_meanwhile_does_not_run_on_what_is_not_there() -> None:
    engine = crowded()
    engine.step()
    engine.keep(engine.core.on_loaded([], [], engine.now_ns))
    assert engine.plan() is None
    pages = called(engine)
    engine.submit(new_turn("s", OTHER))
    (turn,) = [turn for turn in engine.core.waiting if turn.request.turn_id == "s"]
    assert turn.cache.prefix.blocks, "it holds what is whole, though it is on its way"
    engine.keep(engine.core.on_called_back(pages))
    check_integrity(engine.core)
    engine.core.on_cancel(TurnId("t"))
    engine.core.on_staged(TurnId("s"), 1, None, engine.now_ns)
    (row,) = engine.step()
    assert (row.turn_id, row.start) == ("s", 0)
    assert all(
        page != NO_PAGE for block in turn.cache.own for page in engine.core.pool.pages_of(block)
    )
    check_integrity(engine.core)


def test_a_turn_that_could_not_run_even_so_takes_nothing_from_them() -> None:
    engine = crowded()
    engine.submit(new_turn("u", list(range(300, 320))))  # five blocks, of four
    engine.core.on_staged(TurnId("u"), 1, None, engine.now_ns)
    engine.now_ns += MS
    assert names(engine.step()) == ["t"] and not called(engine)


def test_a_waiting_turn_calls_them_back_if_that_lets_it_in() -> None:
    engine = crowded(num_tokens=5)
    engine.submit(new_turn("u", [7, 8]))
    engine.core.on_staged(TurnId("u"), 1, None, engine.now_ns)
    assert names(engine.step()) == ["t"]
    engine.keep(engine.core.on_called_back(called(engine)))
    assert names(engine.step()) == ["t", "u"]
    check_integrity(engine.core)
