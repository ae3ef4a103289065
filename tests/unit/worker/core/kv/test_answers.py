"""Answers of the kvstore that cannot be used."""

from dataclasses import replace

import pytest

from services.worker.core.kv.answers import gone_blocks, leased_pages, staged_blocks
from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey, pack_keys
from shared.errors import MalformedMessage
from shared.wire.messages import KvLeased, KvRenewed, KvStaged, pack_ints

KEYS = [BlockKey(bytes([n]) * 16) for n in range(3)]
GOOD = KvStaged(
    ticket=7, num_blocks=2, pages=pack_ints([0, 1, 8, 9]), generations=pack_ints([5, 5, 5, 5])
)


def parse(reply: KvStaged, keys: list[BlockKey] | None = KEYS) -> Staged:
    return staged_blocks(reply, keys, num_layers=2, num_arena_pages=10, epoch=3)


def test_pages_are_laid_out_by_layer() -> None:
    staged = parse(GOOD)
    assert (staged.keys, staged.pages, staged.epoch) == (KEYS[:2], [[0, 1], [8, 9]], 3)
    assert staged.ready_in_ns == [] and staged.ready_at_ns(1) == 0
    promised = parse(replace(GOOD, ready_in_ns=pack_ints([3, 4], "q"), source_bytes_per_s=2.5))
    assert (promised.ready_in_ns, promised.source_bytes_per_s) == ([3, 4], 2.5)
    of_session = parse(replace(GOOD, keys=pack_keys(KEYS)), None)
    assert of_session.keys == KEYS[:2]


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, pages="?"),
        replace(GOOD, generations="AA=="),
        replace(GOOD, pages=pack_ints([0, 1, 8, 10])),
        replace(GOOD, pages=pack_ints([0, 1, 8, -1])),
        replace(GOOD, pages=pack_ints([0, 1])),
        replace(GOOD, generations=pack_ints([5])),
        replace(GOOD, num_blocks=4),
        replace(GOOD, num_blocks=-1),
        replace(GOOD, ready_in_ns="?"),
        replace(GOOD, ready_in_ns=pack_ints([1], "q")),
        replace(GOOD, ready_in_ns=pack_ints([1, -1], "q")),
        replace(GOOD, ready_in_ns=pack_ints([1, 1 << 62], "q")),
        replace(GOOD, source_bytes_per_s=-1.0),
        replace(GOOD, source_bytes_per_s=float("inf")),
        replace(GOOD, source_bytes_per_s=float("nan")),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(bad: KvStaged) -> None:
    with pytest.raises(MalformedMessage):
        parse(bad)


@pytest.mark.parametrize("keys", ["zz", "00"])
def test_blocks_that_are_gone_and_no_keys_are_refused(keys: str) -> None:
    assert gone_blocks(KvRenewed(gone=pack_keys(KEYS))) == KEYS
    with pytest.raises(MalformedMessage, match="gone"):
        gone_blocks(KvRenewed(gone=keys))


@pytest.mark.parametrize("keys", ["zz", "00"])
def test_keys_of_a_session_that_are_none_are_refused(keys: str) -> None:
    with pytest.raises(MalformedMessage, match="keys"):
        parse(replace(GOOD, keys=keys), None)


def test_leased_pages_are_pages_of_the_arena() -> None:
    assert leased_pages(KvLeased(pages=pack_ints([0, 9])), 10) == [0, 9]
    assert leased_pages(KvLeased(), 0) == []
    for pages in ("?", pack_ints([10]), pack_ints([-1])):
        with pytest.raises(MalformedMessage):
            leased_pages(KvLeased(pages=pages), 10)
