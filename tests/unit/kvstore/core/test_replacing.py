"""A session's last block has grown: the shorter one goes, in every tier, unless it is of use."""

import pytest

from services.kvstore.calls import new_block
from services.kvstore.core import Commit, DeleteBlocks, NewBlock
from shared.blocks import BlockKey, child_key, root_key
from shared.errors import InvalidRequest
from shared.owners import OwnerKey
from shared.wire.messages import KvBlock, pack_ints
from tests.unit.kvstore.core.host import LAYERS, PAGE_BYTES, WORKERS, Host

ROOT = root_key("f", "t")
MINE, OTHERS = OwnerKey(b"m" * 16), OwnerKey(b"o" * 16)


def key_of(tokens: list[int], parent: BlockKey = ROOT) -> BlockKey:
    return child_key(parent, tokens)


def put(
    host: Host,
    tokens: list[int],
    replaces: list[int] | None = None,
    *,
    parent: BlockKey = ROOT,
    owner: OwnerKey = MINE,
    is_written: bool = True,
) -> None:
    """Commit a block that holds these tokens."""
    pages = host.lease(LAYERS)
    old = None if replaces is None else key_of(replaces)
    new = NewBlock(key_of(tokens, parent), parent, tokens, pages, [0] * LAYERS, owner, old)
    event = Commit(WORKERS[0], host.incarnations[WORKERS[0]], "f", PAGE_BYTES, [new], last_lease=1)
    host.perform(host.core.on_commit(event, host.now_ns)[1])
    while is_written and host.writes:
        host.finish_write()


def here(host: Host, *names: list[int]) -> list[bool]:
    return [key_of(tokens) in host.arena.blocks or key_of(tokens) in host.core.disk
            for tokens in names]  # fmt: skip


@pytest.fixture
def host() -> Host:
    host = Host()
    host.open()
    return host


@pytest.mark.parametrize("where", ["arena and disk", "disk", "being written", "memory"])
def test_the_shorter_one_goes_wherever_it_is(host: Host, where: str) -> None:
    put(host, [1], is_written=where != "being written")
    if where == "disk":
        host.evict_all()
        assert key_of([1]) not in host.arena.blocks
    if where == "memory":
        host.perform(host.core.on_disk_damaged(1, host.now_ns))
        assert key_of([1]) in host.core.arena_only
    put(host, [1, 2], [1])
    assert here(host, [1], [1, 2]) == [False, True]
    assert key_of([1]) not in host.core.arena_only
    assert where == "memory" or DeleteBlocks([(key_of([1]), LAYERS)]) in host.effects
    host.check_pages_conserved()


def test_a_session_of_many_turns_leaves_one_block(host: Host) -> None:
    for length in range(1, 40):
        tokens = list(range(length))
        put(host, tokens, tokens[:-1] or None)
    assert len(host.core.disk) == 1 and host.core.disk.num_owned(MINE) == 1
    assert host.core.disk.count_leading(MINE) == 1
    host.check_pages_conserved()


def test_one_that_is_pinned_stays(host: Host) -> None:
    put(host, [1])
    arena_block = host.arena.blocks[key_of([1])]
    host.arena.pin(arena_block)
    put(host, [1, 2], [1])
    assert here(host, [1], [1, 2]) == [True, True]
    host.arena.unpin([arena_block], [])


def test_one_of_another_owner_or_another_place_stays(host: Host) -> None:
    put(host, [1], owner=OTHERS)
    put(host, [1, 2], [1])
    put(host, [3])
    put(host, [3, 4], [3], parent=key_of([9]))
    put(host, [5], owner=OTHERS, is_written=False)
    put(host, [5, 6], [5])
    host.evict_all()
    put(host, [1, 2, 3], [1])
    assert here(host, [1], [3], [5]) == [True, True, True]
    host.check_pages_conserved()


def test_a_block_does_not_replace_itself_and_what_is_not_here_is_no_matter(host: Host) -> None:
    put(host, [1], [1])
    put(host, [1, 2], [7])
    assert here(host, [1], [1, 2]) == [True, True]


def test_one_that_was_known_before_replaces_it_as_well(host: Host) -> None:
    put(host, [1, 2])
    put(host, [1])
    put(host, [1, 2], [1])
    assert here(host, [1], [1, 2]) == [False, True]
    host.check_pages_conserved()


@pytest.mark.parametrize("replaces", ["00", "00" * 17, "00" * 32, "zz"])
def test_a_key_that_is_none_is_refused_by_its_name(replaces: str) -> None:
    block = KvBlock(
        key=key_of([1]).hex(), parent=ROOT.hex(), tokens=pack_ints([1]), pages="", checksums="",
        replaces=replaces,
    )  # fmt: skip
    with pytest.raises(InvalidRequest) as refused:
        new_block(block)
    assert refused.value.param == "replaces"


@pytest.mark.parametrize(("expiry_s", "taken"), [(0, 0), (60, 60), (3600, 3840), (-1, None)])
def test_an_expiry_is_rounded_and_one_that_is_none_is_refused(
    expiry_s: int, taken: int | None
) -> None:
    block = KvBlock(
        key=key_of([1]).hex(), parent=ROOT.hex(), tokens=pack_ints([1]), pages="", checksums="",
        expiry_s=expiry_s,
    )  # fmt: skip
    if taken is not None:
        assert new_block(block).expiry_s == taken
        return
    with pytest.raises(InvalidRequest) as refused:
        new_block(block)
    assert refused.value.param == "expiry_s"
