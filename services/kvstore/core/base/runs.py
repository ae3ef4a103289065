"""What the object store holds: runs, each an object.

A run is some blocks of one session that follow each other. Its name alone says which they are, so
that one listing of a session's objects, held against the keys of a sequence, says what can be had.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.blocks import BlockKey
from shared.expiry import is_rounded_expiry_s
from shared.ids import HostId, subject_token
from shared.owners import NO_OWNER, OWNER_BYTES, OwnerKey

NAMED_BYTES = 6  # of each key: what is read is held against the whole one
BLOCKS_MAX = 64  # of a run: an object's name has at most 1,024 bytes
COUNT_MAX = 1 << 31  # blocks before a run, bytes of a page
LAYERS_MAX = 1 << 16
_PACKED = "z"  # behind the first number of a name
_KEYS_A_PART = 24  # of a path, for stores that are folders: a part has at most 255 bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Attributes:
    owner: the session that made its blocks.
    depth: blocks of the sequence before its first.
    before: the session that made the block before its first; `NO_OWNER`: there is none, or none is
        known.
    named: the beginnings of its blocks' keys.
    host_id: whose kvstore wrote it.
    expiry_s: how long its session outlives its last use; 0: as the tier has it.
    is_packed: its values are compressed (`objects.packed`).
    """

    owner: OwnerKey
    depth: int
    num_layers: int
    page_bytes: int
    before: OwnerKey
    named: bytes
    host_id: HostId
    expiry_s: int = 0
    is_packed: bool = False

    @property
    def num_blocks(self) -> int:
        return len(self.named) // NAMED_BYTES

    @property
    def num_pages(self) -> int:
        return self.num_blocks * self.num_layers

    @property
    def end(self) -> int:
        """Blocks of the sequence up to its last."""
        return self.depth + self.num_blocks

    @property
    def name(self) -> str:
        """Path of the object.

        >>> run = run_of("00" * 16 + "/4-30-64-" + "00" * 16 + "-h-1/AAAAAAAA" + "BBBBBBBB")
        >>> run.depth, run.num_blocks, run.host_id
        (4, 2, 'h-1')
        """
        expiry = f"e{self.expiry_s}" if self.expiry_s else ""
        first = f"{self.depth}{expiry}{_PACKED if self.is_packed else ''}"
        numbers = (first, self.num_layers, self.page_bytes, self.before.hex(), self.host_id)
        part = _KEYS_A_PART * NAMED_BYTES
        parts = [self.named[at : at + part] for at in range(0, len(self.named), part)]
        keys = "/".join(urlsafe_b64encode(each).decode() for each in parts)
        return f"{folder_of(self.owner)}/{'-'.join(map(str, numbers))}/{keys}"

    def place(self, layer: int, at: int) -> int:
        """Where the page of a block and layer stands among its pages: layer by layer."""
        return layer * self.num_blocks + at

    def names(self) -> set[bytes]:
        """What its name contains of its keys."""
        return {self.named[at : at + NAMED_BYTES] for at in range(0, len(self.named), NAMED_BYTES)}

    def has(self, at: int, key: BlockKey) -> bool:
        """Whether its `at`-th block is the one of this key, as far as its name says."""
        return self.named[at * NAMED_BYTES : (at + 1) * NAMED_BYTES] == named(key)


def named(key: BlockKey) -> bytes:
    """What of a key is in a run's name."""
    return key[:NAMED_BYTES]


def folder_of(owner: OwnerKey) -> str:
    """Where a session's objects are."""
    return owner.hex()


def run_of(name: str) -> Run | None:
    """Inverse of `Run.name`; None: something else has this name."""
    try:
        folder, numbers, *parts = name.split("/")
        first, num_layers, page_bytes, before, host_id = numbers.split("-", 4)
        depth, _, expiry_s = first.removesuffix(_PACKED).partition("e")
        run = Run(
            owner=OwnerKey(bytes.fromhex(folder)),
            depth=int(depth),
            num_layers=int(num_layers),
            page_bytes=int(page_bytes),
            before=OwnerKey(bytes.fromhex(before)),
            named=b"".join(map(urlsafe_b64decode, parts)),
            host_id=HostId(subject_token(host_id)),
            expiry_s=int(expiry_s or 0),
            is_packed=first.endswith(_PACKED),
        )
    except ValueError:
        return None
    return run if _is_sound(run) and run.name == name else None


def _is_sound(run: Run) -> bool:
    return (
        len(run.owner) == len(run.before) == OWNER_BYTES
        and 0 <= run.depth < COUNT_MAX
        and is_rounded_expiry_s(run.expiry_s)
        and 0 < len(run.named) <= BLOCKS_MAX * NAMED_BYTES
        and not len(run.named) % NAMED_BYTES
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
    places: dict[BlockKey, Place] = {}
    for run in runs:
        if (run.num_layers, run.page_bytes) != shape:
            continue
        first = max(run.depth, num_before)
        for depth in range(first, min(run.end, num_before + len(keys))):
            key = keys[depth - num_before]
            if not run.has(depth - run.depth, key):
                break  # a key names all that is before it: nor are those that follow
            places[key] = Place(run, depth - run.depth)
    return places


def earlier_owners(runs: Iterable[Run], num_before: int) -> set[OwnerKey]:
    """Sessions that made what is before these runs, if that is needed: the first of each sequence
    may begin later than with the block that is asked for.
    """
    runs = list(runs)
    owners = {run.owner for run in runs}
    return {
        run.before
        for run in runs
        if run.depth > num_before and run.before != NO_OWNER and run.before not in owners
    }
