"""What this host has written to the object store: by session, in order of last use."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from services.kvstore.core.base.deadlines import Deadlines
from services.kvstore.core.base.runs import Run
from services.kvstore.core.disk.disk_tier import EVER_NS, NEVER_NS
from shared.expiry import expiry_ns
from shared.owners import NO_OWNER, OwnerKey

LINKS_MAX = 4  # sessions that begin one another, gone through


class _Saved:
    __slots__ = ("end", "expiry_ns", "num_bytes", "runs", "used_at_ns")

    def __init__(self) -> None:
        self.runs: dict[Run, int] = {}  # and their bytes
        self.num_bytes = 0
        self.used_at_ns = NEVER_NS
        self.expiry_ns = 0  # it outlives that for so long; 0: as the tier has it
        self.end = 0  # blocks of its longest sequence


class ObjectTier:
    """Expired sessions go, and for room those used least recently, however long they have. What
    begins a session has no shorter expiry than that.

    Args:
        expiry_ns: how long sessions outlive their last use that have no expiry of their own.

    Attributes:
        num_bytes: of all objects together.
        on_change: see `locations.Counted`.
    """

    def __init__(self, bytes_max: int, expiry_ns: int = EVER_NS) -> None:
        self._bytes_max = bytes_max
        self._expiry_ns = expiry_ns
        self._deadlines = Deadlines[OwnerKey]()
        self._after: dict[OwnerKey, Counter[OwnerKey]] = {}  # sessions that continue a session
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

    def add(self, run: Run, num_bytes: int, used_at_ns: int, *, is_listed: bool = False) -> None:
        """A run is stored, of a session that was used then. Its name says what was true when it was
        begun: the expiry of a session that is known is newer.
        """
        is_new = run.owner not in self._saved
        saved = self._saved.setdefault(run.owner, _Saved())
        if run not in saved.runs and run.before not in {NO_OWNER, run.owner}:
            self._after.setdefault(run.before, Counter())[run.owner] += 1
        more = num_bytes - saved.runs.get(run, 0)
        saved.runs[run] = num_bytes
        saved.num_bytes += more
        saved.end = max(saved.end, run.end)
        self.num_bytes += more
        if used_at_ns >= saved.used_at_ns:
            saved.used_at_ns = used_at_ns
            if is_new or is_listed:
                saved.expiry_ns = expiry_ns(run.expiry_s)
            self._saved.move_to_end(run.owner)
        self._deadlines.put(run.owner, self._expires_at_ns(saved))
        self.on_change(run.owner, self.count_leading(run.owner))

    def names_of(self, owner: OwnerKey) -> set[bytes]:
        """What the names of a session's runs tell of its blocks."""
        saved = self._saved.get(owner)
        return set() if saved is None else {name for run in saved.runs for name in run.names()}

    def used_at_ns(self, owner: OwnerKey) -> int:
        """When a session that has runs was used last."""
        return self._saved[owner].used_at_ns

    def expiry_ns_of(self, owner: OwnerKey) -> int:
        """How long a session outlives its last use; 0: as the tier has it."""
        saved = self._saved.get(owner)
        return 0 if saved is None else saved.expiry_ns

    def set_expiry(self, owner: OwnerKey, expiry_ns: int, now_ns: int) -> None:
        """A session that was used now has another expiry."""
        saved = self._saved.get(owner)
        if saved is not None and saved.expiry_ns != expiry_ns:
            saved.expiry_ns = expiry_ns
            saved.used_at_ns = max(saved.used_at_ns, now_ns)
            self._saved.move_to_end(owner)
            self._deadlines.put(owner, self._expires_at_ns(saved))
            self.on_change(owner, 1)

    def lift(self, owner: OwnerKey, used_at_ns: int) -> None:
        """A session was used at least as late as that, and so was what begins it."""
        for each in self._with_beginnings(owner):
            saved = self._saved[each]
            saved.used_at_ns = max(saved.used_at_ns, used_at_ns)

    def sort(self) -> None:
        """What was there before the start came in any order; a session that begins another was used
        when that was.
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
        self._leave(run)
        saved.num_bytes -= num_bytes
        self.num_bytes -= num_bytes
        saved.end = max((each.end for each in saved.runs), default=0)
        if not saved.runs:
            del self._saved[run.owner]
            self._deadlines.remove(run.owner)
        self.on_change(run.owner, 0)
        return True

    def forget(self, owner: OwnerKey) -> None:
        """Forget all of a session's runs."""
        if (saved := self._saved.pop(owner, None)) is not None:
            self.num_bytes -= saved.num_bytes
            self._deadlines.remove(owner)
            for run in saved.runs:
                self._leave(run)
            self.on_change(owner, 0)

    def use(self, owner: OwnerKey, now_ns: int) -> None:
        """A session's turn is here: it, and what begins it, was used."""
        for each in self._with_beginnings(owner):
            self._saved[each].used_at_ns = now_ns
            self._saved.move_to_end(each)

    def surplus(self, now_ns: int, num_max: int) -> list[Run]:
        """Runs to drop, the first first, at most so many: of expired sessions, and then for room
        of the least recently used ones; the deepest first, so that none is kept without what it
        continues.
        """
        out = dict.fromkeys(self._take_expired(now_ns, num_max))
        too_much = self.num_bytes - self._bytes_max
        too_much -= sum(self._saved[run.owner].runs[run] for run in out)
        for saved in self._saved.values():
            if too_much <= 0 or len(out) >= num_max:
                break
            for run in _deepest_first(saved.runs):
                if too_much <= 0 or len(out) >= num_max:
                    break
                if run not in out:
                    out[run] = None
                    too_much -= saved.runs[run]
        return list(out)

    def _take_expired(self, now_ns: int, num_max: int) -> list[Run]:
        runs: list[Run] = []
        while len(runs) < num_max and (owner := self._deadlines.take(now_ns)) is not None:
            if kept_until_ns := self._kept_until_ns(owner, now_ns):
                self._deadlines.put(owner, kept_until_ns)
            else:
                self._deadlines.put(owner, now_ns)  # if not all of it goes
                runs += self._saved[owner].runs
        return _deepest_first(runs)[:num_max]

    def _kept_until_ns(self, owner: OwnerKey, now_ns: int, num_links: int = LINKS_MAX) -> int:
        """How long it is not to be looked at, because it or one that it begins is not expired; 0:
        it may go.
        """
        if (saved := self._saved.get(owner)) is None:
            return 0
        if (expires_at_ns := self._expires_at_ns(saved)) >= now_ns:
            return expires_at_ns
        followers = self._after.get(owner, ()) if num_links else ()
        kept = (self._kept_until_ns(each, now_ns, num_links - 1) for each in followers)
        return next(filter(None, kept), 0)

    def _expires_at_ns(self, saved: _Saved) -> int:
        return saved.used_at_ns + (saved.expiry_ns or self._expiry_ns)

    def _leave(self, run: Run) -> None:
        """A run continues no other session's any more."""
        if (after := self._after.get(run.before)) is not None and run.owner in after:
            after[run.owner] -= 1
            if not after[run.owner]:
                del after[run.owner]
                if (begins := self._saved.get(run.before)) is not None:  # kept for it, perhaps
                    self._deadlines.put(run.before, self._expires_at_ns(begins))
            if not after:
                del self._after[run.before]

    def _with_beginnings(self, owner: OwnerKey) -> list[OwnerKey]:
        """A session that has runs, and those that begin it, as far as they have some."""
        found: list[OwnerKey] = []
        todo = [owner]
        while todo and len(found) < LINKS_MAX:
            each = todo.pop()
            if each in found or (saved := self._saved.get(each)) is None:
                continue
            found.append(each)
            todo += {run.before for run in saved.runs} - {NO_OWNER}
        return found


def _deepest_first(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.depth, reverse=True)
