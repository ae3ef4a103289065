"""Which blocks are written to the object store, behind everything else: those of sessions that
rest, the longest resting first.
"""

from collections import OrderedDict
from collections.abc import Set

from services.kvstore.core.base.backoff import Backoff
from services.kvstore.core.base.effects import Effect, SaveOutcome, SaveRun
from services.kvstore.core.base.runs import BLOCKS_MAX, Run, named
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.object_tier import ObjectTier
from shared.expiry import NS_PER_S
from shared.ids import HostId
from shared.line import Line
from shared.owners import NO_OWNER, OwnerKey

RUN_BYTES_MAX = 64 * 1024 * 1024
RUNS_MAX = 2  # with the shell at once: one is read while the other is sent
FULL_SHARE = 0.8  # of the disk: from then on sessions need not rest
LOOKED_AT_MAX = 256  # sessions, at once


class Saving:
    """Args:
    rest_ns: a session is written when nothing new of it came for so long.
    budget: of what is written.
    packs: runs are compressed.
    """

    def __init__(
        self,
        disk: DiskTier,
        disk_bytes_max: int,
        objects: ObjectTier,
        host_id: HostId,
        rest_ns: int,
        budget: Line,
        *,
        packs: bool = False,
    ) -> None:
        self._disk = disk
        self._full_bytes = int(disk_bytes_max * FULL_SHARE)
        self._objects = objects
        self._host_id = host_id
        self._rest_ns = rest_ns
        self._budget = budget
        self._packs = packs
        self._unsaved: OrderedDict[OwnerKey, int] = OrderedDict()  # since when, longest first
        self._saving: dict[Run, int] = {}  # bytes of those that are with the shell
        self._failures = Backoff()

    @property
    def num_sessions(self) -> int:
        """Sessions that have blocks which are to be written, as far as is known."""
        return len(self._unsaved)

    def on_stored(self, block: StoredBlock, now_ns: int) -> None:
        """A block is on disk now."""
        if block.owner != NO_OWNER and not block.is_saved:
            self._begin_rest(block.owner, now_ns)

    def on_found(self, now_ns: int) -> None:
        """It is known what is on disk and what is saved of it."""
        for owner in self._disk.owners:
            self._unsaved.setdefault(owner, now_ns)

    def send(self, now_ns: int, effects: list[Effect]) -> None:
        """Begin what may begin."""
        num_looked_at = 0
        while (
            len(self._saving) < RUNS_MAX
            and not self._failures.is_waiting(now_ns)
            and not self._budget.busy_ns(now_ns)
            and num_looked_at < LOOKED_AT_MAX
        ):
            num_looked_at += 1
            if (owner := self._next(now_ns)) is None:
                return
            blocks = self._unsaved_run(owner)
            if not blocks:
                del self._unsaved[owner]
                continue
            before = self._disk.get(blocks[0].parent)
            run = _run(owner, blocks, before, self._host_id, is_packed=self._packs)
            keys = [block.key for block in blocks]
            num_bytes = sum(block.num_bytes for block in blocks)
            self._saving[run] = num_bytes
            self._budget.send(num_bytes, now_ns)
            effects.append(SaveRun(run, keys))

    def on_saved(
        self, run: Run, outcome: SaveOutcome, now_ns: int, stored_bytes: int | None = None
    ) -> None:
        """A run was written, or was not. What was forgotten meanwhile stays so.

        Args:
            stored_bytes: of the object, if that is known.
        """
        if (num_bytes := self._saving.pop(run, None)) is None:
            return
        num_bytes = num_bytes if stored_bytes is None else stored_bytes
        if outcome is SaveOutcome.MISSING:  # what is left of it gets a run of its own
            return
        if outcome is SaveOutcome.UNREAD:  # as if it had come just now
            self._begin_rest(run.owner, now_ns)
            return
        if outcome is SaveOutcome.FAILED:
            self._failures.on_failed(now_ns)
            return
        self._failures.on_good()
        self._objects.add(run, num_bytes, now_ns)

    def on_dropped(self, run: Run) -> None:
        """A run leaves for age or size: it is written again with what is new of its session, and
        not for nothing.
        """
        self._objects.remove(run)
        self._unsaved.pop(run.owner, None)

    def forget(self, owner: OwnerKey) -> None:
        """The session is deleted: what is being written of it comes to nothing."""
        self._unsaved.pop(owner, None)
        for run in [run for run in self._saving if run.owner == owner]:
            del self._saving[run]
        self._objects.forget(owner)

    def _begin_rest(self, owner: OwnerKey, now_ns: int) -> None:
        self._unsaved[owner] = now_ns
        self._unsaved.move_to_end(owner)

    def _next(self, now_ns: int) -> OwnerKey | None:
        """The session that has rested for longest, if it has for long enough."""
        busy = {run.owner for run in self._saving}
        rest_ns = 0 if self._disk.num_bytes > self._full_bytes else self._rest_ns
        for owner, since_ns in self._unsaved.items():
            if now_ns - since_ns < rest_ns:
                return None
            if owner not in busy:  # one run after the other
                return owner
        return None

    def _unsaved_run(self, owner: OwnerKey) -> list[StoredBlock]:
        """The first run of the sequence that the session used last of which something is not
        saved; empty: all is.
        """
        self._disk.count_leading(owner)  # so that depths are right
        owned = [self._disk.get(key) for key in self._disk.owned(owner)]
        names = self._objects.names_of(owner)
        unsaved = [block for block in owned if block is not None and not _is_saved(block, names)]
        if not unsaved:
            return []
        last = max(unsaved, key=lambda block: (block.depth, block.used_at_ns))
        path: list[StoredBlock] = []
        at: StoredBlock | None = last
        while at is not None and not _is_saved(at, names) and at.owner in {owner, NO_OWNER}:
            if (at.num_layers, at.page_bytes) != (last.num_layers, last.page_bytes):
                break
            path.append(at)
            at = self._disk.get(at.parent)
        path.reverse()
        num_max = max(RUN_BYTES_MAX // last.num_bytes, 1)
        return path[: min(num_max, BLOCKS_MAX)]


def _is_saved(block: StoredBlock, names: Set[bytes]) -> bool:
    """Whether it came from the object store, or a run of its session has it."""
    return block.is_saved or named(block.key) in names


def _run(
    owner: OwnerKey,
    blocks: list[StoredBlock],
    before: StoredBlock | None,
    host_id: HostId,
    *,
    is_packed: bool,
) -> Run:
    first = blocks[0]
    return Run(
        owner=owner,
        depth=first.depth,
        num_layers=first.num_layers,
        page_bytes=first.page_bytes,
        before=NO_OWNER if before is None else before.owner,
        named=b"".join(named(block.key) for block in blocks),
        host_id=host_id,
        expiry_s=blocks[-1].expiry_ns // NS_PER_S,
        is_packed=is_packed,
    )
