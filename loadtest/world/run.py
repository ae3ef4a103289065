"""A world's way to its end: things go wrong, then nothing does, and what must hold by then."""

from random import Random

from loadtest.sim.services.faults import Faults
from loadtest.sim.services.model import BREAKER, KILLER
from loadtest.sim.timeline import MS, SECOND
from loadtest.world.hinters import LAST_TENANT
from loadtest.world.rest import check_rest
from loadtest.world.unleash import heal, unleash
from loadtest.world.world import Options, World
from services.worker.core.engine.steps_in_flight import STEP_MIN_NS
from shared.ids import SessionId
from shared.randomness import take_from
from shared.wire.messages import AdvisoryKey
from shared.wire.tracker_shards import shard_of

CROWD_FACTOR = 2  # twice as many sessions wait for one small worker, each for all before it
SAMPLE_NS = 500 * MS
DISTURBING = {"loss", "garbled", "queue", "delay", "killer"}  # all the time
MORTAL = {"worker", "host", "lost device", "hung device"}  # of workers, without killers
# A worker that reports without having what is sent to it loses a turn eight times, in two reports
# each.
LOST_REPORTS = 16
UNSERVED_CODES = {"no_worker", "no_capacity", "worker_lost"}


def run_seed(seed: int, options: Options | None = None, faults: Faults | None = None) -> World:
    """Run a seed's world to its end.

    Raises:
        AssertionError: something does not hold; its notes name the seed.
    """
    world = World(seed, options or Options(), faults)
    try:
        run_world(world)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world


def run_world(world: World) -> None:
    """Faults, then calm until everything is over and everybody at rest.

    Raises:
        AssertionError: something does not hold.
    """
    take_from(Random(f"ids {world.seed}").randbytes)
    try:
        _run(world)
    finally:
        world.dispose()
        take_from(None)


def _run(world: World) -> None:
    timeline, options, clients = world.deployment.timeline, world.options, world.clients
    unleash(world)
    watch = _Watch(world)
    timeline.run_until(options.faults_for_ns, options.events_max)
    heal(world)
    calm_until_ns = options.faults_for_ns + options.calm_max_ns
    while not (clients.are_done and world.is_whole):
        assert timeline.now_ns < calm_until_ns, f"never ended: {_left_over(world)}"
        timeline.run_until(timeline.now_ns + SECOND, options.events_max)
    timeline.run_until(timeline.now_ns + options.settle_ns, options.events_max)
    world.ledger.is_calm = True
    clients.announce_last()
    world.outsider.ask()
    timeline.run_until(timeline.now_ns + SECOND, options.events_max)
    last = clients.ask_last()
    timeline.run_until(timeline.now_ns + options.rest_ns, options.events_max)
    written_by_ns = timeline.now_ns + options.rest_ns
    while timeline.now_ns < written_by_ns and any(w.is_writing for w in world.workers):
        timeline.run_until(timeline.now_ns + SECOND, options.events_max)
    watch.check_ends()
    assert world.outsider.is_answered, "a question about an advisory was not answered"
    assert last.end in ("stop", "length", "gone"), f"the last turn ended as {last.end}"
    trackers = world.leading_trackers
    hoped = "used" if world.deployment.hears_hints else "late"
    ends_of = {"before": "overtaken", last.session.session_id: hoped, "after": "expired"}
    if not _are_together(world, "before", last.session.session_id):
        ends_of["before"] = "expired"  # a shard knows the order of its own sessions
    for name, end in ends_of.items():
        key = AdvisoryKey(tenant=last.session.tenant, session_id=SessionId(name))
        core = trackers[shard_of(key.tenant, name, len(trackers))].core
        assert core is not None
        state = core.get(key).state
        assert state == end, f"the advisory of {name!r} is {state}"
    ends = next(reversed(world.ledger.job_ends.values()))
    assert ends == ["done"], f"the last jobs ended as {ends}"
    check_rest(world)


def _are_together(world: World, *names: str) -> bool:
    """Whether one shard of the tracker has these sessions of the last tenant."""
    num_shards = world.deployment.num_tracker_shards
    return len({shard_of(LAST_TENANT, name, num_shards) for name in names}) == 1


def _left_over(world: World) -> list[str]:
    return [turn.request_id for turn in world.ledger.turns.values() if turn.end is None]


class _Watch:
    """Looks at a world from time to time: who leads, who could have been served, who was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._unserved_at_ns: list[int] = []
        self._sample()

    def _sample(self) -> None:
        """Record the instants at which no worker could have served a turn."""
        world, options = self._world, self._world.options
        timeline = world.deployment.timeline
        for leadership in (*world.scheduling, *world.tracking):
            leadership.check()
        is_served = (
            world.deployment.wires.is_up
            and all(
                any(each.is_well and each.is_leading for each in leadership.candidates)
                for leadership in world.scheduling
            )
            and any(worker.is_well for worker in world.workers)
            and any(frontend.is_well for frontend in world.frontends)
        )
        if not is_served:
            self._unserved_at_ns.append(timeline.now_ns)
        is_undisturbed = (
            not world.deployment.is_crowded
            and not world.faults.kinds & DISTURBING
            and all(process.is_well for process in world.processes if process.is_up)
        )
        world.clients.check_progress(
            is_served=is_served,
            is_undisturbed=is_undisturbed,
            stall_max_ns=self._stall_max_ns,
            calm_stall_max_ns=options.calm_stall_max_ns,
        )
        timeline.after(SAMPLE_NS, self._sample)

    @property
    def _stall_max_ns(self) -> int:
        """How long a turn may stand still while some worker could serve it."""
        world, options = self._world, self._world.options
        stall_max_ns = options.stall_max_ns * (CROWD_FACTOR if world.deployment.is_crowded else 1)
        if "hung device" in world.faults.kinds:
            stall_max_ns += STEP_MIN_NS  # the worker looks well until it ends
        return stall_max_ns

    def _unserved_ns(self, end: str) -> int:
        """How long there must have been no worker before a turn may end so."""
        unserved_ns = self._world.options.unserved_ns
        if end == "worker_lost":
            lost_ns = LOST_REPORTS * self._world.deployment.report_interval_ms * MS
            unserved_ns = min(unserved_ns, lost_ns - SAMPLE_NS)
        return unserved_ns

    def check_ends(self) -> None:
        """Every turn ended well, unless there was no worker to serve it for too long."""
        for turn in self._world.ledger.turns.values():
            assert turn.end is not None
            if turn.end == "refused":  # and asked for again
                continue
            if turn.sampling.seed == BREAKER:
                assert turn.end in {"poisoned", "gone", *UNSERVED_CODES}, f"a breaker: {turn.end}"
                continue
            if turn.end in ("stop", "length", "gone"):
                assert turn.sampling.seed != KILLER or turn.end == "gone"
                continue
            if turn.sampling.seed == KILLER and turn.end in ("poisoned", "worker_lost"):
                continue
            kinds = self._world.faults.kinds
            if turn.end == "poisoned" and "killer" in kinds and kinds & MORTAL:
                continue  # beside a killer twice, and then alone when a worker died by itself
            num_unserved = sum(
                turn.opened_at_ns <= at_ns <= turn.ended_at_ns for at_ns in self._unserved_at_ns
            )
            unserved_ns = num_unserved * SAMPLE_NS
            is_excused = unserved_ns >= self._unserved_ns(turn.end)
            assert turn.end in UNSERVED_CODES and is_excused, (
                f"{turn.request_id} ended as {turn.end}"
            )
