"""What must hold of every core at any moment."""

from collections.abc import Callable, Iterator, Set

import numpy as np

from loadtest.sim.arena import SimArena
from loadtest.sim.timeline import SECOND
from services.kvstore.core import ArenaBlock, KvCore
from services.kvstore.core.integrity import check_integrity
from services.scheduler.core import SchedulerCore
from services.scheduler.core.fleet.mix import Mix
from services.scheduler.core.fleet.records import ExpectedTurns, Worker
from services.scheduler.core.jobs import JobsCore
from services.tracker.core import TrackerCore
from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.pages import NO_PAGE, Block
from services.worker.core.step import StepPlan, StepResult
from services.worker.core.turns.turn import Turn, TurnState
from shared.arena import PageState
from shared.ids import ModelId
from shared.locations import OBJECTS
from shared.owners import NO_OWNER
from shared.wire.urgency import is_urgent

EXPIRY_NS = 3600 * SECOND  # of sessions without an expiry of their own


def check_worker(core: EngineCore) -> None:
    """Every page of the pool is in exactly one place, and each block's counts are right."""
    pool = core.pool
    places: list[int] = pool._free[: pool.num_free].tolist()
    table: list[list[int]] = pool.table.tolist()
    rows = list(pool._free_rows)
    refs: dict[int, int] = {}
    turns = [*core.running, *core.waiting]
    for turn in turns:
        for block in turn.cache.prefix.blocks:
            refs[id(block)] = refs.get(id(block), 0) + 1
        for block in turn.cache.own:
            rows.append(block.row)
            places += table[block.row]
    for image in core.adapters.images.values():
        for block in image.chain.blocks:
            refs[id(block)] = refs.get(id(block), 0) + 1
    for block in (block for planned in core.flights for block in planned.retired):
        rows.append(block.row)
        places += table[block.row]
    num_clean = 0
    for block in pool.blocks.values():
        rows.append(block.row)
        pages = table[block.row]
        present = [page for page in pages if page != NO_PAGE] if NO_PAGE in pages else pages
        places += present
        assert len(present) == block.num_present
        assert block.refs == refs.get(id(block), 0), "a block's users are miscounted"
        num_clean += _check_block(core, block, pages)
    tails = [turn.cache.tail for turn in core.running if turn.cache.tail is not None]
    assert all(tail.is_forgotten and tail.refs == 1 for tail in tails), "others may find a tail"
    for block in pool.forgotten.values():
        assert block.refs == refs.get(id(block), 0), "a block's users are miscounted"
        assert block.refs or block.loading, "a forgotten block without use is kept"
        rows.append(block.row)
        places += [page for page in table[block.row] if page != NO_PAGE]
    places.sort()
    assert places == list(range(pool.num_pages)), "a page is lost or in two places"
    assert len(rows) == len(set(rows)) == len(table), "a row is lost or of two blocks"
    assert pool.num_takeable == num_clean, "num_clean is wrong"
    assert len(core.running) <= core.limits.turns_running_max
    _check_turns(core, turns)


def _check_block(core: EngineCore, block: Block, pages: list[int]) -> int:
    """Pages of it that may be taken."""
    num_present = block.num_present
    is_idle = block.refs == 0 and block.backed and not block.loading
    assert bool(block.group) == is_idle, "takeable, or not, against the rules"
    assert num_present > 0 and not (is_idle and block.lost), "a block without use is kept"
    if block.refs or not block.backed:
        assert num_present == len(pages), "a page in use or not yet below was taken"
    if block.loading:
        flights = [page for page in pages if page in core.stager.flights]
        assert block.loading == len(flights), "a page under way was taken"
    return num_present if is_idle else 0


def check_deferred(core: EngineCore, plan: StepPlan, now_ns: int) -> int:
    """Deferred admission keeps no turn waiting beyond its target, and none that has tokens.

    Returns:
        Turns that a step with room for them left waiting.
    """
    limits, num_kept = core.limits, 0
    has_room = plan.num_prefill_tokens < limits.prefill_tokens_max - 2
    if not has_room or len(core.running) >= limits.turns_running_max:
        return 0
    for turn in core.waiting:
        if (
            turn.state is TurnState.WAITING
            and not turn.cache.prefix.is_asked
            and not turn.targets.admitted_by_deadline
        ):
            num_kept += 1
            assert now_ns < turn.request.arrived_at_ns + limits.slo_ttft_ns, "kept until too late"
            assert not turn.num_generated, "its user has tokens already"
    return num_kept


def watch_step(core: EngineCore, result: StepResult) -> Callable[[], None]:
    """Called before the core hears of a step's end; what it returns, after that."""
    planned = core.flights[0]
    late: list[tuple[Turn, list[Block]]] = []
    own: list[tuple[Turn, int]] = []
    for index, turn in enumerate(planned.turns):
        if index in result.failed or turn.is_void:
            if turn.num_flights == 1:  # it starts again now
                late.append((turn, [block for block in turn.cache.prefix.blocks if block.loading]))
        elif index not in result.broken:
            own.append((turn, len(turn.cache.prefix.blocks)))

    def check() -> None:
        for turn, blocks in late:
            again = [
                block for block in turn.cache.prefix.blocks if any(block is each for each in blocks)
            ]
            is_outside = all(block.is_late or not block.loading for block in again)
            assert is_outside, (
                f"{turn.request.turn_id} waits again in a pass for what came too late"
            )
        for turn, num_shared in own:
            later = [*turn.cache.prefix.blocks[num_shared:], *turn.cache.own]
            is_own = not any(block.loading for block in later)
            assert is_own, f"{turn.request.turn_id} gave up its own KV for what is on its way"

    return check


def _check_turns(core: EngineCore, turns: list[Turn]) -> None:
    users = {turn.adapter for turn in turns if turn.adapter.ref is not None}
    images = core.adapters.images.values()
    assert users == {use for image in images for use in image.users}, "an adapter without users"
    assert all(image.users or image.is_wished for image in images), "an adapter without users"
    live, leaving = set(map(id, core.turns.values())), set(map(id, core.landing.leaving))
    held = set(map(id, turns))
    assert len(held) == len(turns), "a turn is queued twice"
    assert live | leaving == held and not live & leaving, "a turn is in no queue"
    if leaving:
        in_flight = {id(turn) for planned in core.flights for turn in planned.turns}
        assert leaving <= in_flight, "a turn that ended lingers"


def held_blocks(core: KvCore) -> Iterator[ArenaBlock]:
    """Blocks that have pages in an arena."""
    return (block for arena in core.arenas.values() for block in arena.holding.values())


def check_kvstore(core: KvCore, memory: SimArena, unread: Set[tuple[int, int]]) -> None:
    """Every page of the arena is in exactly one place; none is taken from under a ticket. No
    load waits for another source than its own, and new KV not for the object store.
    """
    check_integrity(core)
    sources = [*core._loads._queues]
    for source in sources:
        num_bytes_waiting = source.backlog.num_bytes - source.backlog.num_bytes_read
        assert source.num_batches or not num_bytes_waiting, "pages wait for another source's"
    is_reading = any(source.num_batches for source in sources if source.host_id != OBJECTS)
    assert is_reading or not core._storing.queue._new.writes, "new KV waits for the object store"
    for arena in core.arenas.values():
        for block in arena.holding.values():
            if block.num_missing and block.num_pins and block.is_alive:
                gone = [layer for layer, page in enumerate(block.pages) if page == NO_PAGE]
                taken = [layer for layer in gone if (block.block_id, layer) not in unread]
                assert not taken, "a page was taken from under a ticket"
        states = memory.words[arena.free_pages] & np.uint64(0xFF)
        assert not (states != PageState.FREE).any(), "a free page is promised"


def check_expired(core: KvCore, now_ns: int) -> None:
    """What is over is gone from the tiers below the arena, once a tick has ended: unless it is
    used, or what continues it is not over. A session has one expiry on a disk.
    """
    disk = core.disk
    for key in disk.keys:
        block = disk.get(key)
        assert block is not None
        is_over = block.used_at_ns + (block.expiry_ns or EXPIRY_NS) < now_ns
        is_used = any(not held.is_idle for a in core.arenas.values() if (held := a.blocks.get(key)))
        assert not is_over or block.num_children or is_used, "an expired block is kept"
        is_alike = block.owner == NO_OWNER or disk.expiry_ns_of(block.owner) == block.expiry_ns
        assert is_alike, "a session has two expiries"
    tier = core.objects.tier
    runs = [run for owner in tier.owners for run in tier.runs_of(owner)]
    begin = {run.before for run in runs if run.before != run.owner}
    for owner in tier.owners if core.objects.is_listed else ():
        is_over = tier.used_at_ns(owner) + (tier.expiry_ns_of(owner) or EXPIRY_NS) < now_ns
        assert not is_over or owner in begin, "an expired session is kept in the object store"


def check_scheduler(core: SchedulerCore, may_be_dead: Callable[[Worker], bool]) -> None:
    """Turns are this scheduler's, and with kept places on workers that can have them.

    Args:
        may_be_dead: whether a worker may have been silent for long.
    """
    strange = [each for each in core._turns._table._turns if not core._turns._share.has_turn(each)]
    assert not strange, f"turns of other schedulers: {strange}"
    for worker in core._fleet:
        is_there = worker.alive or may_be_dead(worker)
        assert is_there, f"{worker.worker_id} lives, and counts as dead"
        is_empty = not worker.num_turns and worker.isolation.claimed_by is None
        assert worker.alive or is_empty, f"{worker.worker_id} is dead and keeps its turns"
        for turn in worker.turns.values():
            assert turn.worker is worker, f"{turn.turn_id} is in two places"
        for held in worker.reservations.values():
            is_kept = held.worker is worker and held.model_id in worker.models
            assert is_kept, f"a place is kept at {worker.worker_id}, which cannot take the turn"
        _check_load(worker)


def _check_load(worker: Worker) -> None:
    """What is kept by heart of a worker's turns and places is so."""
    held = list(worker.reservations.values())
    assert worker.num_far == sum(each.is_far for each in held), "far places are miscounted"
    num_urgent = sum(turn.is_urgent for turn in worker.turns.values())
    num_urgent += sum(turn.is_urgent for turn in worker.peer_turns.values())
    num_urgent += sum(is_urgent(each.priority) and not each.is_far for each in held)
    assert worker.num_urgent == num_urgent, "urgent turns are miscounted"
    mixes: dict[ModelId, Mix] = {}
    for own in worker.turns.values():
        mixes.setdefault(own.counted_in, Mix()).add(own.adapter, own.target_ms)
    for other in worker.peer_turns.values():
        mixes.setdefault(other.counted_in, Mix()).add(other.adapter, other.target_ms)
    held_mixes = {model_id: mix for model_id, mix in mixes.items() if mix != Mix()}
    assert worker.mixes == held_mixes, "adapters or targets are miscounted"
    expected = ExpectedTurns()
    for each in held:
        expected.add(each.arrives_at_ns)
    assert worker.expected == expected, "expected turns are miscounted"


def check_tracker(core: TrackerCore, workflows_max: int) -> None:
    """What it expects is its own: a session that is known, or one of a workflow that it follows; of
    those there are only so many.
    """
    assert core._agents._follower.num_workflows <= workflows_max, "too many workflows are followed"
    for (tenant, session_id), record in core._live.items():
        is_own = record.prefix is not None or core._shards.other(tenant, session_id) is None
        assert is_own, f"the session {session_id} is another shard's"


def check_batches(core: JobsCore) -> None:
    """Every job is in at most one batch."""
    for batch in core._batches:
        assert batch.device.batches.get(batch.batch_id) is batch, "a batch of no device"
        assert all(job.batch is batch for job in batch.jobs), "a job in two batches"
