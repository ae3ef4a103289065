"""The rank table: matches execution candidates and GPUs.

A model offers a batch when its window opens; the candidate gets a free GPU at once, or waits for
the next one. A GPU that becomes free takes the candidate with the earliest latest start. Among free
GPUs the one with the lowest number is taken, so that the high ones stay idle and can be released.

With GPUs that serve the same models every event costs O(log M + log G). GPUs that serve different
models are in different pools; a candidate is in every pool that serves its model.

Source: deferred batch scheduling, sections 3.2 and 4.2, appendix D (RankThread). Unlike there, a
model's own timer runs beside its queue (`shard.py`), not here: a model informs the table once per
batch and not at every arrival.
"""

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush

from services.scheduler.core.batching.candidates import CandidateBook, ExecutionCandidate
from services.scheduler.core.batching.job import NEVER_NS


class GpuHeap:
    """Answers "which is free first" and "which free one has the lowest number" in O(log G).

    Entries of the heaps are never removed early; one counts only while it agrees with `free_at_ns`.

    Attributes:
        free_at_ns: of every GPU here; `NEVER_NS` while it is granted or withheld.
    """

    def __init__(self) -> None:
        self.free_at_ns: dict[int, int] = {}
        self._busy: list[tuple[int, int]] = []  # (free_at_ns, gpu)
        self._idle: list[int] = []
        self._is_idle: set[int] = set()  # in `_idle`

    def __len__(self) -> int:
        return len(self.free_at_ns)

    def set_free(self, gpu: int, free_at_ns: int) -> None:
        """Add or update a GPU that is free from this instant on; `NEVER_NS` withholds it."""
        self.free_at_ns[gpu] = free_at_ns
        self._is_idle.discard(gpu)
        if free_at_ns < NEVER_NS:
            heappush(self._busy, (free_at_ns, gpu))

    def remove(self, gpu: int) -> int:
        """Remove a GPU; returns when it would have been free."""
        self._is_idle.discard(gpu)
        return self.free_at_ns.pop(gpu)

    def first_free_at_ns(self) -> int:
        """When a GPU is free next, or since when one is; `NEVER_NS` if none will be."""
        gpu = self._top_idle()
        if gpu is not None:
            return self.free_at_ns[gpu]
        while self._busy:
            free_at_ns, gpu = self._busy[0]
            if self.free_at_ns.get(gpu) == free_at_ns:
                return free_at_ns
            heappop(self._busy)
        return NEVER_NS

    def lowest(self, at_ns: int) -> int | None:
        """The lowest number among the GPUs that are free at this instant."""
        self._settle(at_ns)
        while (gpu := self._top_idle()) is not None:
            if self.free_at_ns[gpu] <= at_ns:
                return gpu
            self.set_free(gpu, self.free_at_ns[gpu])  # free only for a later start
        return None

    def _settle(self, at_ns: int) -> None:
        """Move every GPU that is free by `at_ns` to the idle heap."""
        busy = self._busy
        while busy and busy[0][0] <= at_ns:
            free_at_ns, gpu = heappop(busy)
            if self.free_at_ns.get(gpu) == free_at_ns and gpu not in self._is_idle:
                self._is_idle.add(gpu)
                heappush(self._idle, gpu)

    def _top_idle(self) -> int | None:
        while self._idle:
            gpu = self._idle[0]
            if gpu in self._is_idle:
                return gpu
            heappop(self._idle)
        return None


BATCHES_MAX = 2  # on one GPU: one that runs and one in flight


@dataclass(frozen=True, slots=True)
class Grant:
    """The GPU belongs to the model from `free_at_ns` on, until it is booked or given back."""

    model: Hashable
    gpu: int
    free_at_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """GPUs that serve the same models, and the candidates that they could take."""

    models: frozenset[Hashable]
    gpus: GpuHeap
    candidates: CandidateBook


class RankTable:
    """Matches candidates and GPUs. GPUs are numbered, models have keys; both come and go."""

    def __init__(self) -> None:
        self._pools: dict[frozenset[Hashable], _Pool] = {}
        self._pools_of: dict[Hashable, list[_Pool]] = {}
        self._pool_of: dict[int, _Pool] = {}
        self._ends: dict[int, deque[int]] = {}  # expected ends of a GPU's batches
        self._standing: dict[Hashable, ExecutionCandidate] = {}

    @property
    def gpus(self) -> Collection[int]:
        """Every GPU's number."""
        return self._pool_of.keys()

    def num_gpus_of(self, model: Hashable) -> int:
        """How many GPUs serve this model."""
        return sum(len(pool.gpus) for pool in self._pools_of.get(model, []))

    def add_gpu(self, gpu: int, models: Collection[Hashable], free_at_ns: int) -> None:
        """Add a GPU, or change the models that one serves; then it keeps its batches."""
        kind = frozenset(models)
        old = self._pool_of.get(gpu)
        if old is not None and old.models == kind:
            return
        if old is not None:
            free_at_ns = self._leave_pool(gpu)
        self._pool_of[gpu] = self._pools.get(kind) or self._new_pool(kind)
        self._ends.setdefault(gpu, deque())
        self._set_free(gpu, free_at_ns)

    def remove_gpu(self, gpu: int) -> None:
        """Remove a GPU."""
        self._leave_pool(gpu)
        del self._ends[gpu]

    def give_back(self, grant: Grant) -> None:
        """Return an unused grant."""
        if grant.gpu in self._pool_of:
            self._set_free(grant.gpu, grant.free_at_ns)

    def book(self, gpu: int, end_at_ns: int) -> None:
        """A granted GPU was sent a batch that is expected to end at this instant."""
        if gpu not in self._pool_of:
            return
        ends = self._ends[gpu]
        ends.append(end_at_ns)
        if len(ends) < BATCHES_MAX:
            self._set_free(gpu, end_at_ns)

    def on_batch_done(self, gpu: int, now_ns: int) -> None:
        """The GPU's oldest batch has ended: its next one begins now, not when expected."""
        ends = self._ends.get(gpu)
        if not ends:
            return
        shift_ns = now_ns - ends.popleft()
        if ends:
            for index in range(len(ends)):
                ends[index] += shift_ns
            self._set_free(gpu, ends[-1])
        elif self.free_at_ns(gpu) < NEVER_NS:  # else it is granted already
            self._set_free(gpu, now_ns)

    def reset(self, gpu: int, now_ns: int) -> None:
        """The GPU reports no batches: forget those that should have ended."""
        ends = self._ends[gpu]
        if any(end_at_ns <= now_ns for end_at_ns in ends):
            is_granted = self.free_at_ns(gpu) == NEVER_NS and len(ends) < BATCHES_MAX
            ends.clear()
            if not is_granted:  # else a model is about to book it
                self._set_free(gpu, now_ns)

    def free_at_ns(self, gpu: int) -> int:
        """When the GPU will be free; `NEVER_NS` while it is granted."""
        return self._pool_of[gpu].gpus.free_at_ns[gpu]

    def offer(self, candidate: ExecutionCandidate, now_ns: int) -> Grant | None:
        """Grant a GPU that is free when the batch can start; if there is none, let it wait.

        Replaces the model's earlier candidate.
        """
        start_at_ns = now_ns + candidate.delay_ns
        pools = self._pools_of.get(candidate.model, [])
        idle = [gpu for pool in pools if (gpu := pool.gpus.lowest(start_at_ns)) is not None]
        if idle:
            return self._grant(candidate.model, min(idle))
        self._standing[candidate.model] = candidate
        for pool in pools:
            pool.candidates.put(candidate)
        return None

    def withdraw(self, model: Hashable) -> None:
        """Withdraw the model's candidate."""
        self._standing.pop(model, None)

    @property
    def wake_at_ns(self) -> int:
        """When to call `match` next: a GPU is about to be free and a candidate waits."""
        wake_at_ns = NEVER_NS
        for pool in self._pools.values():
            delay_ns = pool.candidates.longest_delay_ns()
            if delay_ns is not None:
                wake_at_ns = min(wake_at_ns, pool.gpus.first_free_at_ns() - delay_ns)
        return wake_at_ns

    def match(self, now_ns: int) -> Grant | None:
        """Grant the next GPU that is about to be free to the most urgent candidate that it can
        serve in time. Call it until it returns None, and dispatch each grant before the next call.
        """
        for pool in self._pools.values():
            grant = self._match_in(pool, now_ns)
            if grant is not None:
                return grant
        return None

    def _match_in(self, pool: _Pool, now_ns: int) -> Grant | None:
        delay_ns = pool.candidates.longest_delay_ns()
        if delay_ns is None:
            return None
        free_at_ns = pool.gpus.first_free_at_ns()
        if free_at_ns - delay_ns > now_ns:
            return None
        start_at_ns = max(free_at_ns, now_ns)
        candidate = pool.candidates.most_urgent(start_at_ns)
        if candidate is None:
            return None
        gpu = pool.gpus.lowest(start_at_ns)
        assert gpu is not None
        return self._grant(candidate.model, gpu)

    def _grant(self, model: Hashable, gpu: int) -> Grant:
        grant = Grant(model, gpu, self.free_at_ns(gpu))
        self._pool_of[gpu].gpus.set_free(gpu, NEVER_NS)
        self._standing.pop(model, None)
        return grant

    def _set_free(self, gpu: int, free_at_ns: int) -> None:
        pool = self._pool_of[gpu]
        pool.gpus.set_free(gpu, free_at_ns)
        pool.candidates.look_again(free_at_ns)

    def _new_pool(self, kind: frozenset[Hashable]) -> _Pool:
        pool = self._pools[kind] = _Pool(kind, GpuHeap(), CandidateBook(self._standing))
        for model in kind:
            self._pools_of.setdefault(model, []).append(pool)
            if model in self._standing:
                pool.candidates.put(self._standing[model])
        return pool

    def _leave_pool(self, gpu: int) -> int:
        pool = self._pool_of.pop(gpu)
        free_at_ns = pool.gpus.remove(gpu)
        if not pool.gpus:
            del self._pools[pool.models]
            for model in pool.models:
                self._pools_of[model].remove(pool)
        return free_at_ns
