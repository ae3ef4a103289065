"""What this host has written to the object store: by session, in order of last use."""

from collections import OrderedDict
from collections.abc import Callable

from services.kvstore.core.disk_tier import NEVER_NS
from services.kvstore.core.runs import Run
from shared.owners import NOBODY, OwnerKey

LINKS_MAX = 4  # sessions that begin one another, gone through


class _Saved:
    __slots__ = ("end", "num_bytes", "runs", "used_at_ns")

    def __init__(self) -> None:
        self.runs: dict[Run, int] = {}  # and their bytes
        self.num_bytes = 0
        self.used_at_ns = NEVER_NS
        self.end = 0  # blocks of its longest sequence


class ObjectTier:
    """Attributes:
    num_bytes: of all objects together.
    on_change: see `locations.Counted`.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._saved: OrderedDict[OwnerKey, _Saved] = OrderedDict()  # least recently used first
        self.num_bytes = 0
        self.on_change: Callable[[OwnerKey, int], None] = lambda owner, least: None

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that have runs."""
        return list(self._saved)

    def runs_of(self, owner: OwnerKey) -> list[Run]:
        """A session's, and of those that begin it."""
        return [run for each in self._with_beginnings(owner) for run in self._saved[each].runs]

    def num_owned(self, owner: OwnerKey) -> int:
        """A session's blocks, one in two runs twice."""
        saved = self._saved.get(owner)
        return 0 if saved is None else sum(run.num_blocks for run in saved.runs)

    def count_leading(self, owner: OwnerKey) -> int:
        """Blocks of the session's longest sequence, as far as its runs reach."""
        saved = self._saved.get(owner)
        return 0 if saved is None else saved.end

    def count_all_leading(self) -> dict[OwnerKey, int]:
        """The same of every session."""
        return {owner: self.count_leading(owner) for owner in self._saved}

    def add(self, run: Run, num_bytes: int, used_at_ns: int) -> None:
        """A run is stored, of a session that was used then."""
        saved = self._saved.setdefault(run.owner, _Saved())
        more = num_bytes - saved.runs.get(run, 0)
        saved.runs[run] = num_bytes
        saved.num_bytes += more
        saved.end = max(saved.end, run.end)
        self.num_bytes += more
        if used_at_ns >= saved.used_at_ns:
            saved.used_at_ns = used_at_ns
            self._saved.move_to_end(run.owner)
        self.on_change(run.owner, self.count_leading(run.owner))

    def names_of(self, owner: OwnerKey) -> set[bytes]:
        """What the names of a session's runs tell of its blocks."""
        saved = self._saved.get(owner)
        return set() if saved is None else {name for run in saved.runs for name in run.names()}

    def lift(self, owner: OwnerKey, used_at_ns: int) -> None:
        """A session was used at least as late as that, and so was what begins it."""
        for each in self._with_beginnings(owner):
            saved = self._saved[each]
            saved.used_at_ns = max(saved.used_at_ns, used_at_ns)

    def sort(self) -> None:
        """What was there before the start came in any order; who begins a session was used when
        that was.
        """
        for owner, saved in list(self._saved.items()):
            self.lift(owner, saved.used_at_ns)
        by_use = sorted(self._saved.items(), key=lambda item: item[1].used_at_ns)
        self._saved = OrderedDict(by_use)

    def remove(self, run: Run) -> bool:
        """Forget a run; whether it was known."""
        saved = self._saved.get(run.owner)
        if saved is None or run not in saved.runs:
            return False
        num_bytes = saved.runs.pop(run)
        saved.num_bytes -= num_bytes
        self.num_bytes -= num_bytes
        saved.end = max((each.end for each in saved.runs), default=0)
        if not saved.runs:
            del self._saved[run.owner]
        self.on_change(run.owner, 0)
        return True

    def forget(self, owner: OwnerKey) -> None:
        """Forget all of a session's runs."""
        if (saved := self._saved.pop(owner, None)) is not None:
            self.num_bytes -= saved.num_bytes
            self.on_change(owner, 0)

    def use(self, owner: OwnerKey, now_ns: int) -> None:
        """A session's turn is here: it, and what begins it, was used."""
        for each in self._with_beginnings(owner):
            self._saved[each].used_at_ns = now_ns
            self._saved.move_to_end(each)

    def surplus(self, used_before_ns: int, num_max: int) -> list[Run]:
        """Runs to give up, the first first, at most so many: of the least recently used sessions
        the deepest, so that none is kept without what it continues.
        """
        out: list[Run] = []
        too_much = self.num_bytes - self._bytes_max
        for saved in self._saved.values():
            is_expired = saved.used_at_ns < used_before_ns
            if not is_expired and too_much <= 0:
                break
            for run in sorted(saved.runs, key=lambda run: run.depth, reverse=True):
                if not is_expired and too_much <= 0:
                    break
                if len(out) >= num_max:
                    return out
                out.append(run)
                too_much -= saved.runs[run]
        return out

    def _with_beginnings(self, owner: OwnerKey) -> list[OwnerKey]:
        """A session that has runs, and those that begin it, as far as they have some."""
        found: list[OwnerKey] = []
        todo = [owner]
        while todo and len(found) < LINKS_MAX:
            each = todo.pop()
            if each in found or (saved := self._saved.get(each)) is None:
                continue
            found.append(each)
            todo += {run.before for run in saved.runs} - {NOBODY}
        return found
