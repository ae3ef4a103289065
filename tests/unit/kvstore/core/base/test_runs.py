"""Names of runs say which blocks they hold, and nothing else is taken for one."""

from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.core.base.runs import (
    BLOCKS_MAX,
    NAMED_BYTES,
    Place,
    Run,
    earlier_owners,
    find_places,
    named,
    run_of,
)
from shared.blocks import BlockKey, chain_keys, root_key
from shared.ids import HostId, SessionId, TenantId
from shared.owners import NO_OWNER, OwnerKey, owner_key

SHAPE = (2, 64)
KEYS = chain_keys(root_key("f", TenantId("t")), list(range(64 * 12)))
OTHERS = chain_keys(root_key("f", TenantId("u")), list(range(64 * 12)))
S, T = (owner_key(TenantId("t"), SessionId(name)) for name in "st")


def run_at(
    depth: int,
    keys: list[BlockKey],
    owner: OwnerKey = S,
    before: OwnerKey = NO_OWNER,
    shape: tuple[int, int] = SHAPE,
) -> Run:
    return Run(owner, depth, *shape, before, b"".join(map(named, keys)), HostId("h-1"))


@given(
    owner=st.binary(min_size=16, max_size=16),
    before=st.binary(min_size=16, max_size=16),
    depth=st.integers(0, 10**6),
    num_layers=st.integers(1, 200),
    page_bytes=st.integers(1, 10**7),
    keys=st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=BLOCKS_MAX),
    host=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
)
def test_a_run_is_found_in_its_name(
    owner: bytes,
    before: bytes,
    depth: int,
    num_layers: int,
    page_bytes: int,
    keys: list[bytes],
    host: str,
) -> None:
    beginnings = b"".join(named(BlockKey(key)) for key in keys)
    run = Run(
        OwnerKey(owner), depth, num_layers, page_bytes, OwnerKey(before), beginnings, HostId(host)
    )
    assert run_of(run.name) == run
    assert run.num_blocks == len(keys) and all(
        run.has(at, BlockKey(k)) for at, k in enumerate(keys)
    )
    assert len(run.name) < 900, "a prefix has to go before it"
    assert all(len(part) < 256 for part in run.name.split("/")), "also where they are files"


@given(st.text() | st.from_regex(r"[0-9a-f]{32}/[0-9-]{0,40}/[A-Za-z0-9_=-]{0,40}", fullmatch=True))
def test_other_names_are_no_runs(name: str) -> None:
    run = run_of(name)
    assert run is None or run.name == name


def test_names_that_would_do_harm_are_no_runs() -> None:
    good = run_at(3, KEYS[3:6])
    folder, numbers, keys = good.name.split("/")
    assert run_of(good.name) == good
    for bad in (
        f"{folder}/3-2-64-{'00' * 16}-h.1/{keys}",  # a host that is none
        f"{folder}/-3-2-64-{'00' * 16}-h-1/{keys}",
        f"{folder}/3-0-64-{'00' * 16}-h-1/{keys}",
        f"{folder}/3-2-64-{'00' * 15}-h-1/{keys}",
        f"{folder[2:]}/{numbers}/{keys}",
        f"{folder}/{numbers}/{keys[:-1]}",
        f"{folder}/{numbers}/",
        f"{folder}/{numbers}/" + "A" * (8 * (BLOCKS_MAX + 1)),
        f"{folder}/03-2-64-{'00' * 16}-h-1/{keys}",
        f"../{folder}/{numbers}/{keys}",
    ):
        assert run_of(bad) is None, bad


def test_pages_lie_layer_by_layer() -> None:
    run = run_at(0, KEYS[:3])
    places = [run.place(layer, at) for layer in range(2) for at in range(3)]
    assert places == list(range(run.num_pages))


def test_blocks_are_found_as_far_as_the_sequence_goes_with_the_run() -> None:
    """Shorter, longer, begun before, begun later, and another one from some block on."""
    run = run_at(2, KEYS[2:6])
    assert find_places([run], KEYS, 0, SHAPE) == {
        KEYS[at]: Place(run, at - 2) for at in range(2, 6)
    }
    assert find_places([run], KEYS[4:], 4, SHAPE) == {KEYS[at]: Place(run, at - 2) for at in (4, 5)}
    assert list(find_places([run], KEYS[:4], 0, SHAPE)) == KEYS[2:4]
    forked = [*KEYS[:4], *OTHERS[4:6], KEYS[6]]
    assert list(find_places([run], forked, 0, SHAPE)) == KEYS[2:4]
    assert not find_places([run], OTHERS, 0, SHAPE)
    assert not find_places([run], KEYS[8:], 8, SHAPE)
    assert not find_places([run], KEYS, 0, (2, 65))
    both = find_places([run_at(0, KEYS[:3]), run], KEYS, 0, SHAPE)
    assert set(both) == set(KEYS[:6])


def test_who_begins_a_sequence_is_asked_for_if_that_is_needed() -> None:
    later = run_at(4, KEYS[4:6], before=T)
    assert earlier_owners([later], 0) == {T}
    assert earlier_owners([later], 4) == set()
    assert earlier_owners([later, run_at(0, KEYS[:4], owner=T)], 0) == set()
    assert earlier_owners([run_at(4, KEYS[4:6])], 0) == set()


def test_a_name_says_enough_of_each_key() -> None:
    assert len(run_at(0, KEYS[:5]).named) == 5 * NAMED_BYTES
