"""The object store as the lowest tier: what of it is worth asking for, what is written to it, and
what leaves it.

It may be that no host has a session any more and its objects are there. A host knows what it wrote
itself; what others wrote is known from Redis (`shared.locations.objects_of`) and from a listing of
the session's objects.
"""

from collections.abc import Mapping, Sequence
from math import inf

from services.kvstore.core.base.effects import DropRuns, DropSession, Effect, SaveOutcome
from services.kvstore.core.base.runs import Run
from services.kvstore.core.base.store_limits import SAVED_NS, Counts, Limits
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.locations import Locations
from services.kvstore.core.tiers.object_tier import ObjectTier
from services.kvstore.core.writing.saving import Saving
from shared.ids import HostId
from shared.line import Line
from shared.locations import is_objects
from shared.owners import OwnerKey

DROPPED_MAX = 256  # runs, at once


class Objects:
    """Nothing is written before it is known what was there at the start (`on_all_listed`): else
    it would be written twice.

    Attributes:
        tier: what this host wrote.
        locations: what Redis is to hold of that.
        is_listed: it is known what was there at the start.
    """

    def __init__(self, limits: Limits, disk: DiskTier, host_id: HostId, counts: Counts) -> None:
        self._limits = limits
        self._counts = counts
        self._disk = disk
        self.tier = ObjectTier(limits.objects_bytes_max, limits.objects_expiry_ns)
        self.locations = Locations(self.tier)
        budget = Line(limits.objects_bytes_per_s or inf, SAVED_NS)
        self._saving = Saving(
            disk, limits.disk_bytes_max, self.tier, host_id, limits.objects_rest_ns, budget,
            packs=limits.packs_objects,
        )  # fmt: skip
        self.is_listed = False

    @property
    def num_sessions_unsaved(self) -> int:
        """Sessions that have something to be written."""
        return self._saving.num_sessions

    def may_have(self, owner: OwnerKey, kv_at: Mapping[HostId, int]) -> int:
        """How many leading blocks of a session are said to be there."""
        said = [num for place, num in kv_at.items() if is_objects(place)]
        return max([*said, self.tier.count_leading(owner)])

    def on_stored(self, block: StoredBlock, now_ns: int) -> None:
        """A block is on disk now."""
        if self._limits.has_objects:
            self._saving.on_stored(block, now_ns)

    def on_used(self, owner: OwnerKey, now_ns: int) -> None:
        """A session's turn is here."""
        self.tier.use(owner, now_ns)

    def set_expiry(self, owner: OwnerKey, expiry_ns: int, now_ns: int) -> None:
        """A session that is here now is kept for so long; 0: as the tier has it."""
        self.tier.set_expiry(owner, expiry_ns, now_ns)

    def on_saved(
        self, run: Run, outcome: SaveOutcome, now_ns: int, stored_bytes: int | None = None
    ) -> list[Effect]:
        """See `KvCore.on_saved`."""
        self._counts.num_runs_saved += outcome is SaveOutcome.SAVED
        self._counts.num_runs_unsaved += outcome is SaveOutcome.FAILED
        self._saving.on_saved(run, outcome, now_ns, stored_bytes)
        return self.on_tick(now_ns)

    def on_listed(self, run: Run, num_bytes: int, used_at_ns: int) -> None:
        """A run was there before the start, and is this host's."""
        self.tier.add(run, num_bytes, used_at_ns, is_listed=True)

    def on_all_listed(self, now_ns: int) -> list[Effect]:
        """All of them were listed."""
        for owner in self.tier.owners:
            for key in self._disk.owned(owner)[-1:]:
                if (newest := self._disk.get(key)) is not None:
                    self.tier.lift(owner, newest.used_at_ns)
                    self.tier.set_expiry(owner, newest.expiry_ns, newest.used_at_ns)
        self.tier.sort()
        self.locations.on_found()
        self._saving.on_found(now_ns)
        self.is_listed = True
        return self.on_tick(now_ns)

    def on_gone(self, runs: Sequence[Run]) -> None:
        """These turned out to be there no more."""
        for run in runs:
            self.tier.remove(run)

    def on_deleted(self, owner: OwnerKey, effects: list[Effect]) -> None:
        """A session leaves nothing behind, from any host."""
        if self._limits.has_objects:
            self._saving.forget(owner)
            effects.append(DropSession(owner))

    def on_tick(self, now_ns: int) -> list[Effect]:
        """Now and then: write what has rested, drop what is expired or too much."""
        effects: list[Effect] = []
        if not self.is_listed:
            return effects
        runs: list[Run] = []
        while more := self.tier.surplus(now_ns, DROPPED_MAX - len(runs)):
            for run in more:  # an expired session may have been kept only for one of these
                self._saving.on_dropped(run)
            runs += more
        if runs:
            self._counts.num_runs_dropped += len(runs)
            effects.append(DropRuns(runs))
        self._saving.send(now_ns, effects)
        return effects
