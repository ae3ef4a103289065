"""What a start finds is as the core wants it, and the collector need not look at what it leaves."""

import gc

import numpy as np

from services.kvstore.core import FoundBlocks, Shape
from services.kvstore.tiers.disk import FOUND, Scan, stored_bytes
from services.kvstore.tiers.disk.found import COLLECTED, found_blocks, lasting

NS = 1_000_000_000


def test_times_and_sizes_are_the_core_s() -> None:
    found = np.zeros(3, FOUND)
    found["key"] = [b"k" * 15 + b"\0", b"l" * 16, b"m" * 16]
    found["owner"][1], found["parent"][2] = b"o" * 16, b"l" * 16
    found["num_layers"], found["page_bytes"] = [2, 2, 65535], [4096, 4096, 2**30]
    found["used_s"], found["expiry_s"] = [90, 101, 2**64 - 1], [0, 60, 0]
    blocks = found_blocks(Scan(found), now_ns=50 * NS, now_s=100)
    assert isinstance(blocks, FoundBlocks) and len(blocks) == 3
    assert blocks.keys == b"k" * 15 + b"\0" + b"l" * 16 + b"m" * 16
    assert blocks.owners == bytes(16) + b"o" * 16 + bytes(16)
    assert blocks.parents == bytes(32) + b"l" * 16
    assert blocks.used_at_ns.tolist() == [40 * NS, 50 * NS, 50 * NS], "later is now"
    assert blocks.expiry_ns.tolist() == [0, 60 * NS, 0]
    assert [blocks.shapes[at] for at in blocks.shape_numbers] == [
        Shape(*each, stored_bytes(*each)) for each in ((2, 4096), (2, 4096), (65535, 2**30))
    ]
    assert not len(found_blocks(Scan(), 0, 0))


def test_what_lasts_is_not_looked_at_again() -> None:
    was_enabled, before = gc.isenabled(), gc.get_threshold()
    try:
        with lasting():
            assert not gc.isenabled()
            made = [[number] for number in range(100)]
        assert gc.isenabled() and gc.get_threshold() == COLLECTED
        seen = {id(each) for each in gc.get_objects()}
        assert not any(id(each) in seen for each in made)
    finally:
        gc.set_threshold(*before)
        (gc.enable if was_enabled else gc.disable)()
