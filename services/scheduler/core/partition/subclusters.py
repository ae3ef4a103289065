"""Sub-clusters of a running deployment: which worker is to hold which one-shot models.

All workers of a sub-cluster hold all of its models. When loads shift, workers move between
sub-clusters, each to where it adds most; a worker's move changes one worker, while a model's move
changes all workers of two sub-clusters. So models move, by a new partition within a bounded cost,
only where they are new or sub-clusters are very uneven. Within a minute a bounded share of the
workers changes.

An order is the whole set of models that a worker is to hold. It is sent again until the worker
reports that set, so lost, repeated and late orders do no harm. Nothing here is durable: a new
scheduler finds the sub-clusters in what the workers hold.

Source: deferred batch scheduling, section 4.4 and appendix A; moving workers is ours.
"""

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass

from services.scheduler.core.partition.groups import find_groups, spare, worker_move
from services.scheduler.core.partition.limits import SubclusterLimits
from services.scheduler.core.partition.loads import Loads
from services.scheduler.core.partition.problem import UNPLACED, PartitionModel
from services.scheduler.core.partition.solving import Solved, SolvePartition

Models = frozenset[Hashable]
NOTHING: Models = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a model takes of a worker.

    Attributes:
        static_bytes: its weights, held always.
        dynamic_bytes: held while a batch runs.
        job_ns: a worker's time for one job, by the profile.
    """

    static_bytes: int
    dynamic_bytes: int
    job_ns: int


@dataclass(frozen=True, slots=True)
class HoldModels:
    """The worker is to hold these models and no others: it unloads, then loads."""

    worker: int
    models: Models


@dataclass(slots=True, eq=False)
class _Worker:
    """`ordered` is None once the worker has reported it; `lacks` are models it cannot load."""

    memory_bytes: int
    holds: Models
    lacks: Models
    subcluster: int = UNPLACED
    ordered: Models | None = None
    sent_at_ns: int = 0

    @property
    def stays(self) -> Models:
        """What it holds and is not to unload."""
        return self.holds if self.ordered is None else self.holds & self.ordered

    @property
    def will_hold(self) -> Models:
        return self.holds if self.ordered is None else self.ordered


class Subclusters:
    """Takes events and the time; `on_interval` returns what is to be done.

    Attributes:
        loads: to be informed of arrived jobs and of batches that ran.
    """

    def __init__(self, limits: SubclusterLimits, started_at_ns: int) -> None:
        self.loads = Loads(limits.forget_ns)
        self._limits = limits
        self._started_at_ns = started_at_ns
        self._sizes: dict[Hashable, ModelSize] = {}
        self._workers: dict[int, _Worker] = {}
        self._at: dict[Hashable, int] = {}  # sub-cluster of each placed model
        self._left: set[Hashable] = set()  # idle models that made room for others
        self._num_subclusters = 0
        self._has_learnt = False
        self._is_solving = False
        self._is_new = True  # models or workers came since the last partition
        self._look_at_ns = started_at_ns
        self._looked_at_ns = started_at_ns
        self._changes: deque[int] = deque()  # instants within `window_ns`

    # Facts.

    def put_model(self, model: Hashable, size: ModelSize) -> None:
        """Add a model, or update its size. One too many is ignored."""
        if model not in self._sizes:
            if len(self._sizes) >= self._limits.models_max:
                return
            self._is_new = True
        self._sizes[model] = size
        self.loads.add(model, size.job_ns)

    def remove_model(self, model: Hashable) -> None:
        """A model that no worker can load any more: those that hold it unload it."""
        self._sizes.pop(model, None)
        self._at.pop(model, None)
        self._left.discard(model)
        self.loads.remove(model)

    def on_report(
        self, number: int, holds: Models, memory_bytes: int, lacks: Models = NOTHING
    ) -> None:
        """A worker reports.

        Args:
            holds: models that it can be given batches of.
            memory_bytes: for all its models.
            lacks: models that it was to load and cannot; reported as long as that is so.
        """
        worker = self._workers.get(number)
        if worker is None:
            worker = self._workers[number] = _Worker(memory_bytes, holds, lacks)
            self._is_new = True
        worker.memory_bytes, worker.holds, worker.lacks = memory_bytes, holds, lacks
        if worker.ordered == holds:
            worker.ordered = None

    def on_worker_gone(self, number: int) -> None:
        """A worker is dead, or cannot be given batches."""
        self._workers.pop(number, None)

    def on_partition(self, solved: Solved) -> None:
        """The answer to a `SolvePartition`."""
        self._is_solving = False
        self._num_subclusters = max(self._num_subclusters, solved.num_subclusters)
        self._at |= {model: at for model, at in solved.assignment.items() if model in self._sizes}
        self._left = (self._left | solved.left) & self._sizes.keys() - solved.assignment.keys()
        for model in self._left:
            self._at.pop(model, None)

    # Decisions.

    def on_interval(self, now_ns: int) -> list[HoldModels | SolvePartition]:
        """To be called about once a second."""
        limits = self._limits
        self.loads.end_interval(now_ns)
        if now_ns - self._started_at_ns < limits.learning_ns or not self._workers:
            return []
        if not self._has_learnt:
            self._has_learnt = True
            self._adopt()
        while self._changes and now_ns - self._changes[0] >= limits.window_ns:
            self._changes.popleft()
        out: list[HoldModels | SolvePartition] = []
        request = self._partition_request(now_ns)
        if request is not None:
            out.append(request)
        if self._num_subclusters:
            self._join()
            self._move_workers(now_ns)
            out += self._orders(now_ns)
        return out

    def _adopt(self) -> None:
        """Find the sub-clusters in what the workers hold."""
        found = find_groups({n: worker.holds for n, worker in self._workers.items()})
        self._num_subclusters = found.num_subclusters
        self._at = {m: at for m, at in found.subcluster_of_model.items() if m in self._sizes}
        for number, subcluster in found.subcluster_of_worker.items():
            self._workers[number].subcluster = subcluster

    def _partition_request(self, now_ns: int) -> SolvePartition | None:
        limits, num_workers = self._limits, len(self._workers)
        is_due = now_ns >= self._look_at_ns
        unplaced = self._sizes.keys() - self._at.keys()
        is_late = now_ns - self._looked_at_ns >= limits.missing_ns
        is_missing = bool(unplaced) and (
            self._is_new
            or (is_late and any(self.loads.load(m) >= limits.idle_load for m in unplaced))
        )
        if self._is_solving or not self._sizes or not (is_due or is_missing):
            return None
        self._is_solving, self._is_new = True, False
        self._looked_at_ns, self._look_at_ns = now_ns, now_ns + limits.repartition_ns
        is_known = now_ns - self._started_at_ns >= limits.window_ns
        nums = Counter(worker.subcluster for worker in self._workers.values())
        smallest = min(worker.memory_bytes for worker in self._workers.values())
        epochs = limits.repartition_ns / limits.window_ns
        return SolvePartition(
            keys=tuple(self._sizes),
            models=tuple(
                PartitionModel(
                    model_id=str(model),
                    rate_rps=self.loads.load(model),
                    static_bytes=size.static_bytes,
                    dynamic_bytes=size.dynamic_bytes,
                )
                for model, size in self._sizes.items()
            ),
            current=tuple(self._at.get(model, UNPLACED) for model in self._sizes),
            num_subclusters=self._num_subclusters,
            num_subclusters_max=num_workers,
            memory_max=limits.memory_share * smallest,
            move_costs=tuple(float(nums[self._at.get(m, UNPLACED)]) for m in self._sizes),
            cost_max=limits.changed_share_max * num_workers * epochs,
            uneven_max=limits.uneven_max,
            even_min=limits.even_min,
            idle_max=limits.idle_load if is_known else 0.0,
        )

    def _tally(self) -> tuple[list[int], list[float]]:
        """Workers and load of each sub-cluster."""
        nums, loads = [0] * self._num_subclusters, [0.0] * self._num_subclusters
        for worker in self._workers.values():
            if worker.subcluster != UNPLACED:
                nums[worker.subcluster] += 1
        for model, at in self._at.items():
            loads[at] += self.loads.load(model)
        return nums, loads

    def _join(self) -> None:
        """New workers go where least is to spare."""
        nums, loads = self._tally()
        for number in sorted(self._workers):
            worker = self._workers[number]
            if worker.subcluster == UNPLACED:
                worker.subcluster = min(
                    range(len(nums)), key=lambda j: (spare(nums[j], loads[j]), nums[j])
                )
                nums[worker.subcluster] += 1

    def _move_workers(self, now_ns: int) -> None:
        """As many moves as may be ordered now, the one that gains most first."""
        nums, loads = self._tally()
        targets = self._targets()
        settled: list[list[int]] = [[] for _ in nums]
        num_due = 0
        for number, worker in sorted(self._workers.items()):
            if worker.will_hold != targets[worker.subcluster] - worker.lacks:
                num_due += bool(worker.holds)
            elif worker.ordered is None:
                settled[worker.subcluster].append(number)
        while self._may_change(now_ns, num_due + 1):
            can_give = [j for j, numbers in enumerate(settled) if len(numbers) > 1]
            move = worker_move(nums, loads, can_give, self._limits.gain_min)
            if move is None:
                return
            donor, taker = move
            # Policies prefer low numbers, so high ones are idle.
            self._workers[settled[donor].pop()].subcluster = taker
            nums[donor] -= 1
            nums[taker] += 1
            num_due += 1

    def _orders(self, now_ns: int) -> list[HoldModels | SolvePartition]:
        """Orders for workers that do not hold what their sub-cluster does, as many as may be."""
        targets, copies = self._targets(), Counter[Hashable]()
        num_done = [0] * len(targets)
        due: list[int] = []
        out: list[HoldModels | SolvePartition] = []
        for number, worker in sorted(self._workers.items()):
            copies.update(worker.stays)
            if worker.will_hold == targets[worker.subcluster] - worker.lacks:
                num_done[worker.subcluster] += 1
                if worker.ordered is not None:
                    out += self._repeat(number, worker, now_ns)
            else:
                due.append(number)
        # Of two sub-clusters that exchange models, each always has workers left with its old ones.
        for number in sorted(due, key=lambda n: num_done[self._workers[n].subcluster]):
            worker = self._workers[number]
            models = self._safe(worker, targets[worker.subcluster] - worker.lacks, copies)
            is_change = bool(worker.holds)
            if models in (None, worker.will_hold) or (
                is_change and not self._may_change(now_ns, 1)
            ):
                out += self._repeat(number, worker, now_ns)
                continue
            if is_change:
                self._changes.append(now_ns)
            copies.subtract(worker.stays)
            worker.ordered, worker.sent_at_ns = models, now_ns
            copies.update(worker.stays)
            out.append(HoldModels(number, worker.ordered or NOTHING))
        return out

    def _repeat(self, number: int, worker: _Worker, now_ns: int) -> list[HoldModels]:
        if worker.ordered is None or now_ns - worker.sent_at_ns < self._limits.repeat_ns:
            return []
        worker.sent_at_ns = now_ns
        return [HoldModels(number, worker.ordered)]

    def _targets(self) -> list[Models]:
        """The models of each sub-cluster."""
        members: list[set[Hashable]] = [set() for _ in range(self._num_subclusters)]
        for model, at in self._at.items():
            members[at].add(model)
        return [frozenset(models) for models in members]

    def _safe(self, worker: _Worker, target: Models, copies: Counter[Hashable]) -> Models | None:
        """The target, and what is loaded nowhere else yet; None if the worker cannot hold both."""
        last = {
            model
            for model in worker.holds - target
            if model in self._sizes
            and model not in self._left
            and copies[model] <= (model in worker.stays)
        }
        models = target | last
        sizes = [self._sizes[model] for model in models]
        peak = max((size.dynamic_bytes for size in sizes), default=0)
        total = sum(size.static_bytes for size in sizes) + peak
        return models if total <= worker.memory_bytes else None

    def _may_change(self, now_ns: int, num: int) -> bool:
        """Whether so many more workers may be changed now."""
        limits = self._limits
        if now_ns - self._started_at_ns < limits.window_ns:
            return False  # an earlier scheduler may have changed others
        num_max = max(1.0, limits.changed_share_max * len(self._workers))
        return len(self._changes) + num <= num_max
