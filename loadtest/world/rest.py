"""Invariants of all processes at rest, after the last request has ended."""

from loadtest.sim.bucket import Bucket
from loadtest.sim.redis import RedisServer
from loadtest.sim.services.frontend import Frontend
from loadtest.sim.services.kvstore import OBJECTS_REST_NS, Kvstore
from loadtest.sim.services.scheduler import Leadership, Tracker
from loadtest.sim.services.worker import Worker
from loadtest.sim.services.worker_watch import FAR_NS
from loadtest.sim.timeline import SECOND
from loadtest.world.hinters import FLOOD_ADDRESSES, LAST_ADDRESS, LAST_TENANT, SPAMMERS
from loadtest.world.world import World
from services.kvstore.core.tiers.arena_block import NO_PAGE
from services.kvstore.tiers.values import HEADER_BYTES
from services.tracker.core import Record
from shared.arena import PageState
from shared.locations import (
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    location_redis_key,
    objects_of,
)
from shared.owners import NO_OWNER
from shared.wire.hint_accounts import HintAccounts, HintSender

AGAIN_NS = 2 * SECOND


def check_rest(world: World) -> None:
    """No process holds anything for a request or session."""
    for frontend in world.frontends:
        _check_frontend(frontend)
    for leadership in world.scheduling:
        _check_schedulers(leadership)
    for tracker in world.leading_trackers:
        _check_announced(tracker)
    for worker in world.workers:
        _check_idle(worker)
    for kvstore in world.kvstores.values():
        _check_unheld(kvstore, world.workers)
        _check_told(kvstore, world.redis)
        if world.bucket is not None:
            _check_saved(kvstore, world.bucket)


def _check_schedulers(leadership: Leadership) -> None:
    """Of one shard, or those that rank."""
    leaders = leadership.leaders
    assert len(leaders) == 1, f"{len(leaders)} schedulers lead"
    (leader,) = leaders
    if (jobs := leader.part("jobs")) is not None:
        assert jobs.num_running == jobs.num_waiting == 0, "jobs are still held"
        assert leader.announced == leader.fence, "a new term was not announced"
    if (core := leader.part("turns")) is None:
        return
    status = core.status(leader.now_ns)
    assert status.num_turns_placed == status.num_turns_waiting == 0, "turns are still placed"
    held = core._reservations._held
    near = [key for key in held if key[0] != SPAMMERS or not held[key].is_far]
    assert not near, f"places are still kept for {near}"
    assert not core._turns.peer_turns._where, "turns of others are still counted"
    claims = [worker for worker in core._fleet if worker.isolation.claimed_by is not None]
    assert not claims, "a worker is still claimed"


def _check_announced(process: Tracker) -> None:
    """Only advisories of turns that are expected tomorrow, and not before, still live."""
    tracker, tomorrow_ns = process.core, process.now_ns + FAR_NS
    assert tracker is not None
    live = [record for record in tracker._live.values() if record.arrives_at_ns < tomorrow_ns]
    strange = [key for key in tracker._live if key[0] != SPAMMERS]
    assert not live and not strange, f"advisories still live: {live}, {strange}"
    waiting = [each.key for each in tracker._live.values() if _is_unplaced(each)]
    is_placed = not waiting or not process.deployment.hears_hints
    assert is_placed, f"no place is kept for {waiting}"
    assert not len(tracker._order), "an order without advisories"
    assert not tracker._live_limits.num_foreseen, "of none that live some are foreseen"
    assert tracker._verdicts.send_at_ns is None, "outcomes of advisories are not reported"


def _is_unplaced(record: Record) -> bool:
    return record.is_acted_on and record.worker_id is None


def _check_frontend(frontend: Frontend) -> None:
    """No request is open, and all that requests took was given back."""
    app, name = frontend.app, frontend.name
    assert app is not None, f"{name} does not run"
    hub, jobs = app.hub, app.jobs
    assert not len(hub._turns) and not hub._boxes, f"{name} still waits for turns"
    assert not len(jobs._jobs) and not jobs._waiters, f"{name} still waits for jobs"
    assert not frontend.num_open, f"{name} still answers"
    assert app.slots.num_free == app.slots.num_max, f"{name} has lost slots"
    assert app.quotas.is_unused, f"{name} has lost parts of quotas"
    _check_hints(app.hints._accounts, frontend.now_ns)


def _check_hints(accounts: HintAccounts, now_ns: int) -> None:
    """Buckets are within their limits, and refused senders may send again."""
    for kind in (accounts._sessions, accounts._places, accounts._tenants):
        for key, account in kind.of.items():
            assert 0 <= account.tokens <= kind.size and account.open >= 0, f"an account of {key}"
            is_last = key[0] == LAST_TENANT and (key[1] == LAST_ADDRESS or kind.keeps_debts)
            assert not (is_last and account.open), "the outcome of an advisory is never reported"
    for address in FLOOD_ADDRESSES:
        accounts.take(HintSender(SPAMMERS, address, "s"), now_ns + AGAIN_NS)


def _check_idle(worker: Worker) -> None:
    core, stager = worker.core, worker.core.stager
    assert worker.device is not None and not worker.device.is_busy, f"{worker.name} still computes"
    assert not core.flights, f"{worker.name} still computes"
    assert not core.turns and not core.running and not core.waiting, f"{worker.name} holds turns"
    assert not worker.batches.num_held, f"{worker.name} holds batches"
    assert not worker.pulling.refs(), f"{worker.name} still pulls prompts"
    assert not len(stager.flights) and not stager._tickets and not stager._prefetches
    assert not stager._expected and stager.flights.num_prefetching == 0
    assert not stager.flights._num_demanded.any(), "loads are miscounted"
    assert all(block.refs == 0 for block in core.pool.blocks.values())
    assert not core.write_behind._storing, "a write never ended"
    assert not core.write_behind._committing, "a commit was never settled"


def _check_unheld(kvstore: Kvstore, workers: list[Worker]) -> None:
    for each in workers:
        if each.host_id == kvstore.host_id:
            is_open = kvstore.core.incarnation_of(each.kv_id) is not None
            assert is_open, f"{kvstore.name} does not know {each.kv_id}"
    leased = {
        page
        for worker in kvstore.core.workers
        for pages in worker.leased.values()
        for page in pages
    }
    stock = {
        page
        for worker in workers
        if worker.host_id == kvstore.host_id
        for page in worker.core.write_behind._stock
    }
    assert leased == stock, f"{kvstore.name}: unowned leases: {leased ^ stock}"
    for worker in kvstore.core.workers:
        assert not worker.tickets, f"{kvstore.name}: unowned tickets"
    for arena in kvstore.core.arenas.values():
        assert not any(block.num_pins for block in arena.holding.values()), "unowned pins"
    _check_quiet(kvstore)


def _check_quiet(kvstore: Kvstore) -> None:
    """No thread works, and the core knows what became of all their work."""
    core, memory = kvstore.core, kvstore.arena
    assert not core.is_loading, f"{kvstore.name} still loads"
    assert not core.num_writing, f"{kvstore.name} still writes"
    if memory is None:
        return
    (arena,) = core.arenas.values()
    pages = [page for block in arena.holding.values() for page in block.pages if page != NO_PAGE]
    states = {memory.word(page)[1] for page in pages}
    assert PageState.FILLING not in states, "a page that does not come is still promised"
    assert arena.num_pages == memory.num_pages, "the core does not know all of its memory"


def _check_told(kvstore: Kvstore, redis: RedisServer) -> None:
    """Redis says what is on this host's disk, and what it wrote to the object store, and nothing
    else that anybody would believe.
    """
    core, host_id = kvstore.core, kvstore.host_id
    held = {owner: core._here.count_leading(owner) for owner in core._here.owners}
    if (
        "lost disk" not in kvstore.deployment.fault_kinds
    ):  # what was written just before it is missed
        owners = {block.owner for block in kvstore.disk.blocks.values()} - {NO_OWNER}
        assert {*core.disk.owners} == owners, f"{kvstore.name} does not know whose its blocks are"
    saved = core.objects.tier.count_all_leading()
    lives = decode_lives(redis.hash_of(KV_HOSTS_KEY))
    for place, of_place in ((host_id, held), (objects_of(host_id), saved)):
        reported: dict[str, int] = {}
        for key in redis.location_keys():
            # Its own only: of all, readers get only the most.
            located = redis.hash_of(key)
            own = {name: data for name, data in located.items() if name == place.encode()}
            if found := decode_locations(own, lives):
                reported[key] = found[place]
        expected = {location_redis_key(owner): num for owner, num in of_place.items()}
        said = {key: num for key, num in reported.items() if num}
        assert said == expected, f"{kvstore.name} is mistaken about {place}"


def _check_saved(kvstore: Kvstore, bucket: Bucket) -> None:
    """What rests is in the object store, and what is there is known."""
    objects = kvstore.core.objects
    rested_by_ns = kvstore.now_ns - 3 * OBJECTS_REST_NS  # and it is written in less
    resting = [at_ns for at_ns in objects._saving._unsaved.values() if at_ns < rested_by_ns]
    assert not resting, f"{kvstore.name} has not written what rests"
    known = {run for owner in objects.tier.owners for run in objects.tier._saved[owner].runs}
    own = {run for run in bucket.runs() if run.host_id == kvstore.host_id}
    if "bucket" not in kvstore.deployment.fault_kinds:
        assert known == own, f"{kvstore.name} does not know what it wrote"
    num_bytes = sum(run.num_pages * (HEADER_BYTES + run.page_bytes) for run in known)
    assert objects.tier.num_bytes == num_bytes, "bytes are miscounted"
