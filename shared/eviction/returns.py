"""What returns, and when: learnt from the sequences of blocks that turns use.

A *chain* is one sequence as its latest turn left it; it is recognized by some of its keys, so it
needs no session id, and outlives its blocks. A turn that begins with nearly all of a chain
continues it; one that begins with less *shares* that part, as sessions of one agent share its
system prompt, and is a chain of its own from there on. Every turn, and every use of a shared part,
is a sample: it began to rest, and returned at some age, or has not yet.

Samples are of a *kind*, from the general to the particular: how many turns the chain had, what it
shares with others, how much was new in its last turn, and how long it had paused before. The hazard
of a kind starts from that of the more general one, and departs from it as its own samples say.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from shared.blocks import BlockKey
from shared.eviction.guard import Guard, Part
from shared.eviction.hazard import EDGES_NS, NUM_BINS, PRIOR_HAZARDS, bin_of, indices

CHAINS_MAX = 16_384  # that are remembered, shared parts included
SAMPLES_MAX = 32_768  # from which hazards are learnt; the oldest leave
KINDS_MAX = 4_096
LEVELS = 5  # of kinds, the most general first
PRIOR_SAMPLES = (10.0, 10.0, 30.0, 30.0, 30.0)  # what the more general level counts as, by level
ANCHORS_MAX = 24  # keys by which a chain is recognized
SLACK_SHARE, SLACK_MIN = 8, 2  # the end of a chain that a turn may lack and still continue it
ARRIVAL_NS = 1_000_000_000  # what comes so soon after the last use is of the same turn
TURN_NS = 5_000_000_000  # blocks that come later than that after the last are of a later turn
REFIT_MIN, REFIT_SHARE = 64, 16  # samples, and part of all samples, until hazards are new
SHARED_MIN = 3  # uses, from which on what shares a part is a kind of its own
UNKNOWN_KIND = 0  # the kind of which nothing is known

_TURNS = (0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7)


@dataclass(slots=True, eq=False)
class _Chain:
    """Attributes:
    num_blocks: of the whole sequence; of a shared part, what precedes its end.
    num_shared: of the first blocks, that other chains have, too.
    num_turns: of a shared part: its uses.
    shares: the chain of those.
    anchors: keys that lead here.
    sample: of its latest use.
    is_running: a turn arrived, and its new blocks are still to come.
    """

    number: int
    is_shared: bool
    used_at_ns: int
    num_blocks: int = 0
    num_shared: int = 0
    num_turns: int = 0
    shares: "_Chain | None" = None
    anchors: deque[BlockKey] = field(default_factory=deque)
    sample: int = -1
    kind: int = UNKNOWN_KIND
    shared_kind: int = UNKNOWN_KIND
    is_running: bool = False

    def is_continued(self, depth: int) -> bool:
        """By what begins with its first `depth` blocks."""
        slack = max(SLACK_MIN, self.num_blocks // SLACK_SHARE)
        return not self.is_shared and depth >= self.num_blocks - slack

    @property
    def kinds(self) -> "Kinds":
        return Kinds(self.num_shared, self.shared_kind, self.kind)

    def parts(self, depth: int) -> list[Part]:
        """What its first `depth` blocks are of."""
        if self.shares is None:
            return [Part(self.number, depth)]
        shared = Part(self.shares.number, self.num_shared)
        return [shared, Part(self.number, max(depth, self.num_shared))]


def _name_of(shared: _Chain | None) -> int:
    """What those that share it are called together: an agent's, if many do."""
    if shared is None:
        return 0
    return shared.number if shared.num_turns >= SHARED_MIN else -1


class ReturnModel:
    """Streaming, of bounded memory, without clock: an arrival costs a look-up for each block that
    is new, and a few microseconds.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._chains: OrderedDict[int, _Chain] = OrderedDict()  # by number, by last use
        self._by_key: dict[BlockKey, _Chain] = {}
        self._samples = _Samples()

    def arrive(
        self,
        keys: Sequence[BlockKey],
        now_ns: int,
        first: int = 0,
        found_in: Sequence[tuple[Guard, int]] = (),
    ) -> "Kinds":
        """A turn begins that needs these blocks, at least one.

        Args:
            first: how many blocks precede them in the sequence.
            found_in: of each tier that was asked, how many of the first of these it has.
        """
        found, at = self._find(keys)
        num_here = max((num for _, num in found_in), default=0)
        depth = first + max(at + 1, num_here)
        parts = found.parts(first + at + 1) if found is not None else []
        for guard, num in found_in:
            guard.on_arrival(parts, first, len(keys), num)
        if found is not None and found.is_continued(first + at + 1):
            # Not all who begin a turn tell of its end: engines beside a connector do not.
            if now_ns - found.used_at_ns >= (TURN_NS if found.is_running else ARRIVAL_NS):
                self._continue(found, first + len(keys) - depth, now_ns)
        else:
            found = self._begin(keys, first, depth, now_ns, found)
        found.is_running = True
        self._extend(found, keys, first, now_ns)
        for guard, _ in found_in:
            guard.use(found.parts(found.num_blocks))
        return found.kinds

    def grow(
        self, keys: Sequence[BlockKey], now_ns: int, first: int = 0, guards: Sequence[Guard] = ()
    ) -> "Kinds":
        """A turn has used or made these blocks: its chain rests from now on, unless more come."""
        found, at = self._find(keys)
        depth = first + at + 1
        is_part = found is not None and found.is_running and first + len(keys) <= found.num_blocks
        if found is None or not (is_part or found.is_continued(depth)):
            found = self._begin(keys, first, depth, now_ns, found)
        elif not found.is_running and now_ns - found.used_at_ns >= TURN_NS:
            self._continue(found, first + len(keys) - depth, now_ns)
        found.is_running = False
        self._extend(found, keys, first, now_ns)
        self._samples.rest(found.sample, now_ns)
        for guard in guards:
            guard.use(found.parts(found.num_blocks))
        return found.kinds

    def kinds_of(self, keys: Sequence[BlockKey]) -> "Kinds | None":
        """Those of the chain that some of these blocks are known by; None: of none."""
        found, _ = self._find(keys)
        if found is None or found.is_shared:
            return None
        return found.kinds

    def index(self, kind: int, age_bin: int) -> float:
        """Returns per second of keeping what is of this kind from this age on."""
        return self._samples.indices(kind)[age_bin]

    def is_known(self, kind: int) -> bool:
        """Whether `index` says more of this kind than what holds for whatever returns."""
        return self._samples.is_known(kind)

    def _find(self, keys: Sequence[BlockKey]) -> tuple[_Chain | None, int]:
        """The chain of the last of these keys by which one is known, and where that stands."""
        by_key = self._by_key
        for at in range(len(keys) - 1, -1, -1):
            if (found := by_key.get(keys[at])) is not None:
                return found, at
        return None, -1

    def _continue(self, chain: _Chain, num_new: int, now_ns: int) -> None:
        pause_ns = now_ns - chain.used_at_ns
        self._chains.move_to_end(chain.number)  # or it may be the one that makes room just now
        self._samples.end(chain.sample, now_ns, is_return=True)
        chain.num_turns += 1
        if chain.shares is not None:
            self._use_shared(chain.shares, now_ns)
            chain.shared_kind = chain.shares.kind
        self._sample(chain, num_new, pause_ns, now_ns)

    def _begin(
        self,
        keys: Sequence[BlockKey],
        first: int,
        num_shared: int,
        now_ns: int,
        before: _Chain | None,
    ) -> _Chain:
        """A chain that has its first blocks from another one, and as many of its turns."""
        chain = _Chain(next(self._numbers), is_shared=False, used_at_ns=now_ns)
        chain.num_turns, chain.num_shared = 1, num_shared
        if before is not None and not before.is_shared:
            chain.num_turns += before.num_turns * num_shared // max(before.num_blocks, 1)
        if first < num_shared <= first + len(keys):
            chain.shares = self._shared(keys[num_shared - first - 1], num_shared, now_ns)
            self._use_shared(chain.shares, now_ns)
            chain.shared_kind = chain.shares.kind
        self._sample(chain, first + len(keys) - num_shared, 0, now_ns)
        self._remember(chain)
        return chain

    def _shared(self, key: BlockKey, num_blocks: int, now_ns: int) -> _Chain:
        """The part that chains share which ends with this block."""
        shared = self._by_key.get(key)
        if shared is None or not shared.is_shared:
            if shared is not None:
                shared.anchors.remove(key)
            number = next(self._numbers)
            shared = _Chain(number, is_shared=True, used_at_ns=now_ns, num_blocks=num_blocks)
            self._by_key[key] = shared
            shared.anchors.append(key)
        return shared

    def _use_shared(self, shared: _Chain, now_ns: int) -> None:
        pause_ns = now_ns - shared.used_at_ns
        if shared.num_turns:
            self._samples.end(shared.sample, now_ns, is_return=True)
        shared.num_turns += 1
        shared.used_at_ns = now_ns
        self._sample(shared, 0, pause_ns, now_ns)
        self._remember(shared)

    def _sample(self, chain: _Chain, num_new: int, pause_ns: int, now_ns: int) -> None:
        if chain.is_shared:
            turn = -1 - min(chain.num_turns.bit_length(), 7)
        else:
            turn = _TURNS[min(chain.num_turns, len(_TURNS) - 1)]
        pause = bin_of(pause_ns) // 2
        new = num_new.bit_length() // 2
        by_shared = (turn, _name_of(chain.shares))
        path = ((turn,), by_shared, (*by_shared, new), (*by_shared, new, pause))
        chain.sample, chain.kind = self._samples.add(path, now_ns)

    def _extend(self, chain: _Chain, keys: Sequence[BlockKey], first: int, now_ns: int) -> None:
        """The chain ends with these now, and is known by some of them: the further from its end,
        the fewer."""
        chain.used_at_ns = now_ns
        self._remember(chain)
        chain.num_blocks = max(chain.num_blocks, first + len(keys))
        own = len(keys) - max(chain.num_shared - first, 0)
        back = 1
        while back <= own:
            self._anchor(chain, keys[-back])
            back *= 2
        if keys and not first and not chain.num_shared:
            self._anchor(chain, keys[0])

    def _anchor(self, chain: _Chain, key: BlockKey) -> None:
        before = self._by_key.get(key)
        if before is chain or (before is not None and before.is_shared):
            return
        if before is not None:
            before.anchors.remove(key)
        self._by_key[key] = chain
        chain.anchors.append(key)
        if len(chain.anchors) > ANCHORS_MAX:
            del self._by_key[chain.anchors.popleft()]

    def _remember(self, chain: _Chain) -> None:
        self._chains[chain.number] = chain
        self._chains.move_to_end(chain.number)
        while len(self._chains) > CHAINS_MAX:
            _, oldest = self._chains.popitem(last=False)
            while oldest.anchors:
                del self._by_key[oldest.anchors.popleft()]
            self._samples.end(oldest.sample, chain.used_at_ns, is_return=False)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Of a chain's blocks: the first `num_shared` are of one kind, those behind them of another."""

    num_shared: int
    shared: int
    own: int

    def of(self, depth: int) -> int:
        """That of the block with so many before it."""
        return self.shared if depth < self.num_shared else self.own


class _Samples:
    """The latest uses, what became of each, and hazards by kind."""

    def __init__(self) -> None:
        self._num = 0  # ever
        self._began_ns = np.zeros(SAMPLES_MAX, np.int64)
        self._ended_ns = np.full(SAMPLES_MAX, -1, np.int64)  # -1: it rests
        self._is_return = np.zeros(SAMPLES_MAX, bool)
        self._levels = np.zeros((LEVELS, SAMPLES_MAX), np.int32)
        self._ids: list[dict[object, int]] = [{} for _ in range(LEVELS)]
        self._kinds: dict[tuple[int, ...], int] = {}
        self._paths: list[tuple[int, ...]] = [(0,)]  # by kind
        self._num_fitted = 0
        # By level: [id, bin], what returned, and of how many that had not before.
        self._returned: list[npt.NDArray[np.float64]] = []
        self._at_risk: list[npt.NDArray[np.float64]] = []
        self._indices: dict[int, list[float]] = {}

    def add(self, path: Sequence[object], now_ns: int) -> tuple[int, int]:
        """One begins to rest: (its number, its kind)."""
        levels = (0, *map(self._level_id, range(1, LEVELS), path))
        kind = self._kinds.get(levels, UNKNOWN_KIND)
        if kind == UNKNOWN_KIND and len(self._paths) < KINDS_MAX:
            kind = self._kinds[levels] = len(self._paths)
            self._paths.append(levels)
        at = self._num % SAMPLES_MAX
        self._began_ns[at], self._ended_ns[at], self._is_return[at] = now_ns, -1, False
        self._levels[:, at] = levels
        self._num += 1
        if self._num >= self._num_fitted + max(REFIT_MIN, self._num_fitted // REFIT_SHARE):
            self._fit(now_ns)
        return self._num - 1, kind

    def rest(self, number: int, now_ns: int) -> None:
        """It was still in use until now."""
        if number > self._num - 1 - SAMPLES_MAX:
            self._began_ns[number % SAMPLES_MAX] = now_ns

    def end(self, number: int, now_ns: int, *, is_return: bool) -> None:
        """It returned, or is not watched any longer."""
        if number > self._num - 1 - SAMPLES_MAX:
            self._ended_ns[number % SAMPLES_MAX] = now_ns
            self._is_return[number % SAMPLES_MAX] = is_return

    def is_known(self, kind: int) -> bool:
        """Whether there were samples of this kind, or of the next to most general one."""
        return (
            kind != UNKNOWN_KIND
            and bool(self._returned)
            and (self._paths[kind][1] < len(self._returned[1]))
        )

    def indices(self, kind: int) -> list[float]:
        """By age."""
        if (found := self._indices.get(kind)) is None:
            found = self._indices[kind] = indices(self._hazards(kind))
        return found

    def _level_id(self, level: int, name: object) -> int:
        """0 where there are too many: all of those are one."""
        ids = self._ids[level]
        if (found := ids.get(name)) is None and len(ids) < KINDS_MAX:
            found = ids[name] = len(ids) + 1
        return found or 0

    def _hazards(self, kind: int) -> list[float]:
        hazards = np.array(PRIOR_HAZARDS)
        for level, each in enumerate(self._paths[kind] if self._returned else ()):
            if each >= len(self._returned[level]):
                break  # newer than the last fit
            prior = PRIOR_SAMPLES[level]
            returned, at_risk = self._returned[level][each], self._at_risk[level][each]
            hazards = (returned + prior * hazards) / (at_risk + prior)
        found: list[float] = hazards.tolist()
        return found

    def _fit(self, now_ns: int) -> None:
        """Count again what returned at which age: a few milliseconds for a full window."""
        self._num_fitted = self._num
        num = min(self._num, SAMPLES_MAX)
        began, ended = self._began_ns[:num], self._ended_ns[:num]
        ages = np.where(ended < 0, now_ns, ended) - began
        bins = np.searchsorted(np.array(EDGES_NS[1:-1]), ages, side="right")
        is_return = self._is_return[:num]
        self._returned, self._at_risk = [], []
        for level in self._levels[:, :num]:
            cells, size = level * NUM_BINS + bins, (int(level.max()) + 1) * NUM_BINS
            left = np.bincount(cells, minlength=size).reshape(-1, NUM_BINS)
            returned = np.bincount(cells[is_return], minlength=size).reshape(-1, NUM_BINS)
            reached = left[:, ::-1].cumsum(axis=1)[:, ::-1]
            # Those that left unseen were watched for half of the bin in the mean.
            self._returned.append(returned.astype(np.float64))
            self._at_risk.append(reached - (left - returned) / 2)
        self._indices.clear()
