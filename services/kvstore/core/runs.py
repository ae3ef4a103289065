"""What the object store holds: runs, each an object.

A run is some blocks of one session that follow each other. Its name alone tells which they are, so
that a listing of a session's objects says what can be had: a key names all that is before it, so
whoever knows a sequence's keys knows from the last one of a run that he knows the others, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.blocks import BlockKey
from shared.ids import HostId, subject_token
from shared.owners import NOBODY, OWNER_BYTES, OwnerKey

NAMED_KEY_BYTES = 16  # of a key, in a run's name; its values are held against the whole one
COUNT_MAX = 1 << 31  # blocks before a run, bytes of a page
BLOCKS_MAX = 1 << 16  # of a run
LAYERS_MAX = 1 << 16
_NONE = "0"  # in the place of a key


@dataclass(frozen=True, slots=True)
class Run:
    """Attributes:
    owner: the session that made its blocks.
    depth: blocks of the sequence before its first.
    before: who made the block before its first; nobody: there is none, or nobody's was it.
    last: the beginning of its last block's key.
    second: of the last but one's; empty: there is none. A session's last block may be a tail, which
        its next turn replaces: the blocks before that are still of use.
    host_id: whose kvstore wrote it.
    """

    owner: OwnerKey
    depth: int
    num_blocks: int
    num_layers: int
    page_bytes: int
    before: OwnerKey
    last: bytes
    second: bytes
    host_id: HostId

    @property
    def name(self) -> str:
        """Path of the object.

        >>> run_of("00" * 16 + "/4-2-30-64-" + "00" * 16 + "-" + "aa" * 16 + "-0-h-1").depth
        4
        """
        parts = (
            self.depth, self.num_blocks, self.num_layers, self.page_bytes, self.before.hex(),
            self.last.hex(), self.second.hex() or _NONE, self.host_id,
        )  # fmt: skip
        return f"{folder_of(self.owner)}/{'-'.join(map(str, parts))}"

    @property
    def num_pages(self) -> int:
        return self.num_blocks * self.num_layers

    def place(self, layer: int, at: int) -> int:
        """Where the page of a block and layer stands among its pages: layer by layer."""
        return layer * self.num_blocks + at

    def num_known(self, keys: Mapping[int, BlockKey]) -> int:
        """How many of its blocks are of a sequence, from its first on.

        Args:
            keys: of the sequence, by how many blocks precede each.
        """
        for named, num_blocks in ((self.last, self.num_blocks), (self.second, self.num_blocks - 1)):
            key = keys.get(self.depth + num_blocks - 1)
            if named and key is not None and key[:NAMED_KEY_BYTES] == named:
                return num_blocks
        return 0


def folder_of(owner: OwnerKey) -> str:
    """Where a session's objects are."""
    return owner.hex()


def run_of(name: str) -> Run | None:
    """Inverse of `Run.name`; None: something else has this name."""
    try:
        folder, _, rest = name.partition("/")
        numbers, (before, last, second, host_id) = (
            rest.split("-", 7)[:4],
            rest.split("-", 7)[4:],
        )
        depth, num_blocks, num_layers, page_bytes = map(int, numbers)
        run = Run(
            owner=OwnerKey(bytes.fromhex(folder)),
            depth=depth,
            num_blocks=num_blocks,
            num_layers=num_layers,
            page_bytes=page_bytes,
            before=OwnerKey(bytes.fromhex(before)),
            last=bytes.fromhex(last),
            second=b"" if second == _NONE else bytes.fromhex(second),
            host_id=HostId(subject_token(host_id)),
        )
    except ValueError:
        return None
    return run if _is_sound(run) and run.name == name else None


def _is_sound(run: Run) -> bool:
    return (
        len(run.owner) == len(run.before) == OWNER_BYTES
        and len(run.last) == NAMED_KEY_BYTES
        and len(run.second) in {0, NAMED_KEY_BYTES}
        and 0 <= run.depth < COUNT_MAX
        and 0 < run.num_blocks <= BLOCKS_MAX
        and 0 < run.num_layers <= LAYERS_MAX
        and 0 < run.page_bytes <= COUNT_MAX
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block is: the `at`-th of a run."""

    run: Run
    at: int


def find_places(
    runs: Iterable[Run], keys: Sequence[BlockKey], num_before: int, shape: tuple[int, int]
) -> dict[BlockKey, Place]:
    """Where blocks of a sequence are.

    Args:
        keys: of the sequence, from `num_before` blocks on.
        shape: layers and bytes of a page.
    """
    by_depth = {num_before + at: key for at, key in enumerate(keys)}
    places: dict[BlockKey, Place] = {}
    for run in runs:
        if (run.num_layers, run.page_bytes) != shape:
            continue
        for at in range(run.num_known(by_depth)):
            if (key := by_depth.get(run.depth + at)) is not None:
                places[key] = Place(run, at)
    return places


def earlier_owners(runs: Iterable[Run], num_before: int) -> set[OwnerKey]:
    """Who made what is before these runs, if anybody needs that: the first of each sequence may
    begin later than with the block that is asked for.
    """
    runs = list(runs)
    owners = {run.owner for run in runs}
    return {
        run.before
        for run in runs
        if run.depth > num_before and run.before != NOBODY and run.before not in owners
    }
