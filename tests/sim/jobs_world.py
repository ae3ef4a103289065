"""Schedulers of one-shot jobs among frontends and workers, all of which may fail."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from services.scheduler.core.base.effects import ProbeWorker
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import make_rules
from services.scheduler.core.jobs import (
    AnswerDropped,
    CountJobs,
    Deposed,
    JobsCore,
    JobsEffect,
    PublishAdvice,
    RankCore,
    SendBatch,
    SendBooked,
    SendGrant,
    SendHold,
    SendOffer,
    ShardJobsCore,
)
from services.scheduler.core.jobs.remote_rank import RemoteBatcher, RemoteRank
from services.scheduler.core.partition.solving import SolvePartition, solve
from services.scheduler.policies import make_batcher
from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId
from shared.wire.messages import SOLE_LEADERSHIP, BatchStart, LeaderChanged
from tests.sim.heap import MS, Network, World
from tests.sim.jobs_peers import Alarm, Setup, SimFrontend, SimWorker


class SimProcess:
    """One scheduler process: a core that is fed by the network until it is stopped."""

    def __init__(self, house: "House", core: JobsCore | RankCore, name: str) -> None:
        self.house = house
        self.core = core
        self.name = name
        self.is_up = True
        self.num_wakes = 0
        self.alarm = Alarm(house.world, self._wake)
        self._wake()

    def stop(self) -> None:
        self.is_up = False
        self.alarm.stop()
        self.house.world.note(f"{self.name} ends")

    def tell(self, handler: str, message: Any) -> None:
        if self.is_up and hasattr(self.core, handler):
            self._perform(getattr(self.core, handler)(message, self.house.world.now_ns))

    def _wake(self) -> None:
        self.num_wakes += 1
        self._perform(self.core.on_wake(self.house.world.now_ns))

    def _perform(self, effects: Sequence[JobsEffect]) -> None:
        house, send = self.house, self.house.network.send
        for effect in effects:
            match effect:
                case SendBatch(worker_id, start):
                    house.on_sent(self, worker_id, start)
                    send(partial(house.workers[worker_id].on_batch_start, start))
                case AnswerDropped(frontend_id):
                    send(partial(house.frontends[frontend_id].on_dropped, effect))
                case ProbeWorker(worker_id):
                    if not house.workers[worker_id].is_up:
                        house.world.after(MS, partial(self.tell, "on_worker_gone", worker_id))
                case SendOffer(offer):
                    send(partial(house.tell_rank, "on_offer", offer))
                case SendBooked(booked):
                    send(partial(house.tell_rank, "on_booked", booked))
                case SendGrant(shard, grant):
                    send(partial(house.tell_shard, shard, "on_grant", grant))
                case SendHold(worker_id, order):
                    send(partial(house.workers[worker_id].on_hold, order))
                case SolvePartition():
                    solved = partial(self.tell, "on_partition", solve(effect))
                    house.world.after(MS, solved)
                case WakeAt(at_ns):
                    self.alarm.set(at_ns)
                case Deposed():
                    self.stop()
                case CountJobs() | PublishAdvice():
                    pass


class House:
    """Everything there is, all of which may fail.

    Attributes:
        twice: jobs that two leaders had run at one time.
        sizes: of the batches sent.
    """

    def __init__(self, seed: int, setup: Setup) -> None:
        self.setup = setup
        self.world = World(seed)
        self.network = Network(
            self.world,
            loss=setup.loss,
            duplication=setup.duplication,
            delay_max_ns=max(setup.delay_max_ns, 1),
        )
        self.models = {ModelId(model.name): model for model in setup.models}
        self.frontends: dict[FrontendId, SimFrontend] = {}
        self.workers: dict[WorkerId, SimWorker] = {}
        self.leaders: dict[int, SimProcess] = {}
        self.former: list[SimProcess] = []
        self.rank: SimProcess | None = None
        self.fence = 0
        self.sizes: Counter[int] = Counter()
        self.twice: list[str] = []
        self._running: dict[WorkerId, BatchId] = {}
        self._jobs_of: dict[BatchId, tuple[int, str, list[JobId]]] = {}
        for number in range(setup.num_frontends):
            frontend = SimFrontend(self, f"f{number}")
            self.frontends[frontend.frontend_id] = frontend
        if setup.num_shards:
            self.start_rank()
        for shard in range(max(setup.num_shards, 1)):
            self.lead(shard)
        for number in range(setup.num_workers):
            worker = SimWorker(self, f"w{number}")
            self.workers[worker.worker_id] = worker

    # Processes.

    def lead(self, shard: int = 0) -> None:
        """A new leader begins. If there is an old one, it does not know yet."""
        if shard in self.leaders:
            self.former.append(self.leaders[shard])
        self.fence += 1
        leadership = f"shard-{shard}" if self.setup.num_shards else SOLE_LEADERSHIP
        name = f"{leadership}-{self.fence}"
        core = (
            self._make_shard(shard, leadership, name) if self.setup.num_shards else self._make(name)
        )
        self.world.note(f"{name} leads")
        self.leaders[shard] = SimProcess(self, core, name)
        changed = LeaderChanged(instance=name, fence=self.fence, leadership=leadership)
        for worker in self.workers.values():
            self.network.send(partial(worker.on_leader, changed))
        for frontend in self.frontends.values():
            self.network.send(partial(frontend.on_leader, changed))

    def _delays(self) -> Delays:
        limits = self.setup.limits
        return Delays(limits.ctrl_ns, limits.data_ns, limits.slack_ns)

    def _make(self, name: str) -> JobsCore:
        batcher = make_batcher(self.setup.policy, self._delays())
        return JobsCore(
            batcher,
            self.setup.limits,
            fence=self.fence,
            started_at_ns=self.world.now_ns,
            name=name,
        )

    def _make_shard(self, shard: int, leadership: str, name: str) -> ShardJobsCore:
        remote = RemoteRank(shard, first_seq=self.world.now_ns // MS)
        batcher = RemoteBatcher(remote, make_rules(self.setup.policy), self._delays())
        return ShardJobsCore(
            batcher,
            self.setup.limits,
            fence=self.fence,
            started_at_ns=self.world.now_ns,
            name=name,
            leadership=leadership,
        )

    def start_rank(self) -> None:
        """A rank process begins, and the old one, if any, ends."""
        now_ns = self.world.now_ns
        if self.rank is not None:
            self.rank.stop()
        core = RankCore(self.setup.limits, started_at_ns=now_ns, first_grant=1 + now_ns // MS)
        self.rank = SimProcess(self, core, "rank")

    def crash_leader(self, shard: int, after_ns: int) -> None:
        """The leader dies at once, and another one takes over a while later."""
        self.leaders[shard].stop()
        self.world.after(after_ns, partial(self.lead, shard))

    def crash_worker(self, worker: SimWorker, down_ns: int) -> None:
        if worker.is_up:
            worker.crash()
            self.world.after(down_ns, worker.start)

    # Messages.

    def shard_of(self, model: str) -> int:
        names = list(self.models)
        return names.index(ModelId(model)) % max(self.setup.num_shards, 1)

    def to_shard(self, shard: int, handler: str, message: object) -> None:
        """Whoever leads when it arrives; a former leader may hear it, too."""
        self.network.send(partial(self.tell_shard, shard, handler, message))

    def tell_shard(self, shard: int, handler: str, message: object) -> None:
        self.leaders[shard].tell(handler, message)

    def tell_rank(self, handler: str, message: object) -> None:
        if self.rank is not None:
            self.rank.tell(handler, message)

    def to_all_schedulers(self, handler: str, message: object) -> None:
        """Each of them hears it, or not, by itself."""
        for shard in self.leaders:
            self.to_shard(shard, handler, message)
        for process in self.former:
            self.network.send(partial(process.tell, handler, message))
        if self.rank is not None:
            self.network.send(partial(self.tell_rank, handler, message))

    # What happened.

    def on_sent(self, process: SimProcess, worker_id: WorkerId, start: BatchStart) -> None:
        self.world.note(f"{start.batch_id} -> {worker_id}: {len(start.jobs)}")
        self.sizes[len(start.jobs)] += 1
        jobs = [job.job_id for job in start.jobs]
        assert len(set(jobs)) == len(jobs), f"a job is twice in {start.batch_id}"
        self._jobs_of[start.batch_id] = (start.fence, start.leadership, jobs)

    def begin_run(self, worker: SimWorker, batch_id: BatchId) -> None:
        assert worker.worker_id not in self._running, f"two batches on {worker.worker_id}"
        fence, leadership, jobs = self._jobs_of[batch_id]
        for other_id in self._running.values():
            other_fence, other_leadership, other_jobs = self._jobs_of[other_id]
            both = set(jobs) & set(other_jobs)
            if both and other_fence != fence:
                assert leadership == other_leadership, f"{both} in two shards"
                self.twice += sorted(both)
        self._running[worker.worker_id] = batch_id

    def running(self, worker_id: WorkerId) -> BatchId | None:
        """The batch on a worker's device."""
        return self._running.get(worker_id)

    def end_runs(self, worker_id: WorkerId) -> None:
        self._running.pop(worker_id, None)

    def outcomes(self) -> Counter[str]:
        """Requests by how they ended; ``open`` for those that did not, ``twice`` for the others."""
        counts: Counter[str] = Counter()
        for frontend in self.frontends.values():
            for ends in frontend.ends.values():
                counts[ends[0] if len(ends) == 1 else "twice" if ends else "open"] += 1
        return counts
