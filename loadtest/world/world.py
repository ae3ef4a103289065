"""One house: who is in it, how long things go wrong, and what must hold at the end."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from loadtest.world.checks import check_rest
from loadtest.world.clients import UNSERVED_CODES, Clients
from loadtest.world.faults import Faults, draw_faults, heal, unleash
from loadtest.world.frontend import Frontend
from loadtest.world.kvstore import Kvstore
from loadtest.world.model import BREAKER, KILLER, Model
from loadtest.world.process import Process
from loadtest.world.redis import Redis
from loadtest.world.scheduler import LeaseStore, Scheduler
from loadtest.world.timeline import MS, SECOND, Timeline
from loadtest.world.tracker import Tracker
from loadtest.world.wires import Wires
from loadtest.world.worker import Worker
from shared.ids import HostId, JobId, TurnId, WorkerId
from shared.messages import AdvisoryKey, TurnStart

SAMPLE_NS = 500 * MS
CROWDED_SHARE = 0.2  # of worlds: twice as many sessions, all busy, on one small worker, and
CROWDED_SLOWNESS = (1, 100, 1000, 3000)  # a disk as slow as this: history often comes too late
DISTURBING = {"loss", "queue", "delay", "killer"}  # all the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How large and how long a world is.

    Attributes:
        faults_for_ns: as long as things go wrong; turns are asked for during that time.
        calm_max_ns: by then, with nothing going wrong, everything must be over.
        settle_ns: what a new leader and new connections need until everybody is served again.
        rest_ns: after that nobody may hold anything any more.
        stall_max_ns: how long a turn may stand still while somebody could serve it.
        calm_stall_max_ns: the same, where nothing is lost and nobody is frozen or cut off; less
            than it takes a frontend to submit again.
        unserved_ns: how long nobody can have been there to serve a turn that was refused.
    """

    faults_for_ns: int = 8 * SECOND
    calm_max_ns: int = 150 * SECOND
    settle_ns: int = 4 * SECOND
    rest_ns: int = 8 * SECOND
    unserved_ns: int = 6 * SECOND
    stall_max_ns: int = 20 * SECOND
    calm_stall_max_ns: int = 8 * SECOND
    sessions_max: int = 7
    workers_max: int = 3
    events_max: int = 400_000


class World:
    """Attributes:
    random: decides what people do; `network_random` how messages fare; `fault_random` the rest.
    """

    def __init__(self, seed: int, options: Options, faults: Faults | None = None) -> None:
        self.seed = seed
        self.options = options
        self.timeline = Timeline()
        self.random = Random(f"world {seed}")
        self.network_random = Random(f"network {seed}")
        self.fault_random = Random(f"details {seed}")
        self.faults = draw_faults(seed, options.faults_for_ns) if faults is None else faults
        self.trace: list[str] = []
        self.num_dropped = 0
        self._leader_of: dict[int, str] = {}
        self._started: set[tuple[TurnId, int]] = set()
        self._is_calm = False
        self._unserved_at_ns: list[int] = []
        random = self.random
        self.model = Model(
            num_layers=random.choice([1, 2]), step_ns=random.choice([5, 20, 60]) * MS
        )
        self.wires = Wires(self)
        self.redis = Redis(self)
        self.lease_store = LeaseStore()
        hosts = [HostId(f"h{number}") for number in range(random.choice([1, 1, 2]))]
        num_blocks = 10 if "arena" in self.faults.kinds else random.choice([20, 80])
        num_pages = self.model.num_layers * num_blocks
        self.is_crowded = is_crowded = random.random() < CROWDED_SHARE
        slowness = random.choice(CROWDED_SLOWNESS) if is_crowded else 1
        self.kvstores = {host: Kvstore(self, host, num_pages, slowness) for host in hosts}
        num_workers = 1 if is_crowded else random.randint(1, options.workers_max)
        self.workers = [Worker(self, random.choice(hosts), n) for n in range(num_workers)]
        self.schedulers = [Scheduler(self, number) for number in range(random.choice([1, 2]))]
        self.tracker = Tracker(self)
        self.frontends = [Frontend(self, number) for number in range(random.choice([1, 2]))]
        self.processes: list[Process] = [
            *self.kvstores.values(), *self.workers, *self.schedulers, self.tracker,
            *self.frontends,
        ]  # fmt: skip
        for process in self.processes:
            process.start()
        num_sessions = (
            2 * options.sessions_max if is_crowded else random.randint(2, options.sessions_max)
        )
        self.clients = Clients(self, num_sessions, options.faults_for_ns)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.timeline.now_ns / MS:10.3f} {text}")

    def run(self) -> None:
        """Faults, then calm until everything is over and everybody at rest.

        Raises:
            AssertionError: something does not hold.
        """
        timeline, options = self.timeline, self.options
        unleash(self)
        self._sample()
        timeline.run_until(options.faults_for_ns, options.events_max)
        heal(self)
        calm_until_ns = options.faults_for_ns + options.calm_max_ns
        while not (self.clients.are_done and all(process.is_well for process in self.processes)):
            assert timeline.now_ns < calm_until_ns, f"never ended: {self._left_over()}"
            timeline.run_until(timeline.now_ns + SECOND, options.events_max)
        timeline.run_until(timeline.now_ns + options.settle_ns, options.events_max)
        self._is_calm = True
        self.clients.announce_last()
        timeline.run_until(timeline.now_ns + SECOND, options.events_max)
        last = self.clients.ask_last()
        timeline.run_until(timeline.now_ns + options.rest_ns, options.events_max)
        written_by_ns = timeline.now_ns + options.rest_ns
        while timeline.now_ns < written_by_ns and any(w.is_writing for w in self.workers):
            timeline.run_until(timeline.now_ns + SECOND, options.events_max)
        self._check_ends()
        assert last.end in ("stop", "length", "gone"), f"the last turn ended as {last.end}"
        advised = self.tracker.core.get(
            AdvisoryKey(tenant=last.session.tenant, session_id=last.session.session_id)
        )
        assert advised.state == "used", f"the last advisory is {advised.state}"
        ends = next(reversed(self.clients.job_ends.values()))
        assert ends == ["done"], f"the last jobs ended as {ends}"
        check_rest(self)

    def check_leaders(self) -> None:
        """One at a time."""
        leaders = [scheduler.name for scheduler in self.schedulers if scheduler.is_leading]
        assert len(leaders) <= 1, f"{leaders} lead at once"

    def on_lead(self, scheduler: Scheduler, fence: int) -> None:
        """No fence is ever told to two processes."""
        name = f"{scheduler.name}.{scheduler.life}"
        owner = self._leader_of.setdefault(fence, name)
        assert owner == name, f"{owner} and {name} both lead under {fence}"
        self.note(f"{name} leads")
        self.check_leaders()

    def on_start_turn(self, start: TurnStart, worker_id: WorkerId) -> None:
        """No attempt is given out twice; where nothing goes wrong, no turn that was served. (One
        whose client left may have been under way.)"""
        name = (start.turn_id, start.attempt)
        assert name not in self._started, f"{name} is started twice"
        self._started.add(name)
        is_over = self.clients.turns[start.turn_id].end not in (None, "gone")
        assert not (self._is_calm and is_over), f"{start.turn_id} is over, and placed again"
        self.note(f"{start.turn_id}.{start.attempt} -> {worker_id}")

    def on_jobs(self, job_ids: Iterable[JobId], what: str) -> None:
        """Where nothing goes wrong, a job that is over is over for the scheduler, too."""
        if self._is_calm:
            over = [job_id for job_id in job_ids if self.clients.is_job_over(job_id)]
            assert not over, f"{over} are over, and {what}"

    def _left_over(self) -> list[str]:
        return [turn.turn_id for turn in self.clients.turns.values() if turn.end is None]

    def _sample(self) -> None:
        """Note the moments at which nobody could have served a turn."""
        self.check_leaders()
        is_served = (
            self.wires.is_up
            and any(scheduler.is_well and scheduler.is_leading for scheduler in self.schedulers)
            and any(worker.is_well for worker in self.workers)
            and any(frontend.is_well for frontend in self.frontends)
        )
        if not is_served:
            self._unserved_at_ns.append(self.timeline.now_ns)
        is_undisturbed = (
            not self.is_crowded
            and not self.faults.kinds & DISTURBING
            and all(process.is_well for process in self.processes if process.is_up)
        )
        self.clients.check_progress(is_served=is_served, is_undisturbed=is_undisturbed)
        self.timeline.after(SAMPLE_NS, self._sample)

    def _check_ends(self) -> None:
        """Every turn ended well, unless nobody was there to serve it for too long."""
        for turn in self.clients.turns.values():
            assert turn.end is not None
            if turn.sampling.seed == BREAKER:
                assert turn.end in {"poisoned", "gone", *UNSERVED_CODES}, f"a breaker: {turn.end}"
                continue
            if turn.end in ("stop", "length", "gone"):
                assert turn.sampling.seed != KILLER or turn.end == "gone"
                continue
            if turn.sampling.seed == KILLER and turn.end in ("poisoned", "worker_lost"):
                continue
            if turn.end == "poisoned" and self.faults.kinds >= {"killer", "worker"}:
                continue  # beside a killer twice, and then alone when a worker died by itself
            num_unserved = sum(
                turn.opened_at_ns <= at_ns <= turn.ended_at_ns for at_ns in self._unserved_at_ns
            )
            assert (
                turn.end in UNSERVED_CODES and num_unserved * SAMPLE_NS >= self.options.unserved_ns
            ), f"{turn.turn_id} ended as {turn.end}"


def run_seed(seed: int, options: Options | None = None, faults: Faults | None = None) -> World:
    """Run a seed's world to its end.

    Raises:
        AssertionError: something does not hold; its notes name the seed.
    """
    world = World(seed, options or Options(), faults)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world
