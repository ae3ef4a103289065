"""GPUs that serve the same models, ordered by when they are free."""

from heapq import heappop, heappush

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
