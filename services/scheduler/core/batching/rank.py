"""The rank table: which schedulable batch meets which GPU.

Models offer a batch when its window opens; an offer finds a free GPU at once, or waits for the next
one. A GPU that becomes free takes the offer whose latest moment is the closest. Among free GPUs the
one with the lowest number is taken, so that the high ones stay idle and can be given back.

With GPUs that serve the same models every event costs O(log M + log G). GPUs that serve different
models are kept in different pools; an offer stands in every pool that serves its model.

Source: deferred batch scheduling, sections 3.2 and 4.2, appendix D (RankThread). Unlike there, a
model's own timer runs beside its queue (`shard.py`), not here: a model tells the table once a batch
and not at every arrival.
"""

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass

from services.scheduler.core.batching.gpu_heap import GpuHeap
from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.batching.offer_book import Offer, OfferBook

BATCHES_MAX = 2  # on one GPU: one that runs and one on its way


@dataclass(frozen=True, slots=True)
class Grant:
    """The GPU is the model's from `free_at_ns` on, until the table hears otherwise."""

    model: Hashable
    gpu: int
    free_at_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """GPUs that serve the same models, and the offers that they could take."""

    models: frozenset[Hashable]
    gpus: GpuHeap
    offers: OfferBook


class RankTable:
    """Matches offers and GPUs. GPUs are known by numbers, models by keys; both come and go."""

    def __init__(self) -> None:
        self._pools: dict[frozenset[Hashable], _Pool] = {}
        self._pools_of: dict[Hashable, list[_Pool]] = {}
        self._pool_of: dict[int, _Pool] = {}
        self._ends: dict[int, deque[int]] = {}  # of the batches a GPU has, as expected
        self._standing: dict[Hashable, Offer] = {}

    @property
    def gpus(self) -> Collection[int]:
        """Every GPU's number."""
        return self._pool_of.keys()

    def num_gpus_of(self, model: Hashable) -> int:
        """How many GPUs serve this model."""
        return sum(len(pool.gpus) for pool in self._pools_of.get(model, []))

    def add_gpu(self, gpu: int, models: Collection[Hashable], free_at_ns: int) -> None:
        """A GPU has come, or serves other models than before; then it keeps its batches."""
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
        """A GPU has gone."""
        self._leave_pool(gpu)
        del self._ends[gpu]

    def give_back(self, grant: Grant) -> None:
        """The model had nothing to run after all."""
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
        """The GPU's oldest batch is over: what it still has begins now, and not when expected."""
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
        """The GPU has nothing: forget the batches that it was sent long ago."""
        ends = self._ends[gpu]
        if any(end_at_ns <= now_ns for end_at_ns in ends):
            is_granted = self.free_at_ns(gpu) == NEVER_NS and len(ends) < BATCHES_MAX
            ends.clear()
            if not is_granted:  # else somebody is about to book it
                self._set_free(gpu, now_ns)

    def free_at_ns(self, gpu: int) -> int:
        """When the GPU will be free; `NEVER_NS` while it is granted."""
        return self._pool_of[gpu].gpus.free_at_ns[gpu]

    def offer(self, offer: Offer, now_ns: int) -> Grant | None:
        """Give the batch a GPU that is free when it can start; if there is none, let it wait.

        Replaces the model's earlier offer.
        """
        start_at_ns = now_ns + offer.delay_ns
        pools = self._pools_of.get(offer.model, [])
        idle = [gpu for pool in pools if (gpu := pool.gpus.lowest(start_at_ns)) is not None]
        if idle:
            return self._grant(offer.model, min(idle))
        self._standing[offer.model] = offer
        for pool in pools:
            pool.offers.put(offer)
        return None

    def withdraw(self, model: Hashable) -> None:
        """The model has no schedulable batch any more."""
        self._standing.pop(model, None)

    @property
    def wake_at_ns(self) -> int:
        """When `match` should be called next: a GPU is about to be free and an offer waits."""
        wake_at_ns = NEVER_NS
        for pool in self._pools.values():
            delay_ns = pool.offers.longest_delay_ns()
            if delay_ns is not None:
                wake_at_ns = min(wake_at_ns, pool.gpus.first_free_at_ns() - delay_ns)
        return wake_at_ns

    def match(self, now_ns: int) -> Grant | None:
        """The next GPU that is about to be free takes the most urgent offer that it can still
        serve. Call it until it returns None; each time dispatch before the next call.
        """
        for pool in self._pools.values():
            grant = self._match_in(pool, now_ns)
            if grant is not None:
                return grant
        return None

    def _match_in(self, pool: _Pool, now_ns: int) -> Grant | None:
        delay_ns = pool.offers.longest_delay_ns()
        if delay_ns is None:
            return None
        free_at_ns = pool.gpus.first_free_at_ns()
        if free_at_ns - delay_ns > now_ns:
            return None
        start_at_ns = max(free_at_ns, now_ns)
        offer = pool.offers.most_urgent(start_at_ns)
        if offer is None:
            return None
        gpu = pool.gpus.lowest(start_at_ns)
        assert gpu is not None
        return self._grant(offer.model, gpu)

    def _grant(self, model: Hashable, gpu: int) -> Grant:
        grant = Grant(model, gpu, self.free_at_ns(gpu))
        self._pool_of[gpu].gpus.set_free(gpu, NEVER_NS)
        self._standing.pop(model, None)
        return grant

    def _set_free(self, gpu: int, free_at_ns: int) -> None:
        pool = self._pool_of[gpu]
        pool.gpus.set_free(gpu, free_at_ns)
        pool.offers.look_again(free_at_ns)

    def _new_pool(self, kind: frozenset[Hashable]) -> _Pool:
        pool = self._pools[kind] = _Pool(kind, GpuHeap(), OfferBook(self._standing))
        for model in kind:
            self._pools_of.setdefault(model, []).append(pool)
            if model in self._standing:
                pool.offers.put(self._standing[model])
        return pool

    def _leave_pool(self, gpu: int) -> int:
        pool = self._pool_of.pop(gpu)
        free_at_ns = pool.gpus.remove(gpu)
        if not pool.gpus:
            del self._pools[pool.models]
            for model in pool.models:
                self._pools_of[model].remove(pool)
        return free_at_ns
