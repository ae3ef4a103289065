"""Pages that are packed: they come back as they were, and what is none comes to nothing."""

from contextlib import nullcontext, suppress

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.core import Run
from services.kvstore.tiers import packing
from services.kvstore.tiers.objects.packed import Indexes, index_bytes, pack_run, read_index
from services.kvstore.tiers.packing import RAW, WIDTHS, best_width, pack, unpack
from services.kvstore.tiers.values import HEADER_BYTES, BadValue
from shared.arena import Bytes
from shared.ids import HostId
from shared.owners import NO_OWNER, OwnerKey

RUN = Run(OwnerKey(b"s" * 16), 0, 2, 256, NO_OWNER, bytes(6 * 3), HostId("h"), is_packed=True)
VALUE_BYTES = HEADER_BYTES + RUN.page_bytes


def like_bf16(num: int, seed: int = 0) -> Bytes:
    """Numbers of about one size: the upper halves of float32."""
    drawn = np.random.default_rng(seed).normal(size=num).astype("<f4")
    return drawn.view("<u2")[1::2].copy().view(np.uint8)


@given(st.binary(max_size=200), st.sampled_from(WIDTHS))
def test_bytes_come_back(data: bytes, width: int) -> None:
    packed = pack(np.frombuffer(data, np.uint8), width)
    assert unpack(packed, len(data)).tobytes() == data
    assert len(packed) <= len(data) + 1


@given(st.binary(max_size=80), st.integers(0, 64))
def test_anything_else_is_refused_or_as_long_as_it_should_be(data: bytes, num_bytes: int) -> None:
    with suppress(BadValue):
        assert len(unpack(data, num_bytes)) == num_bytes


def test_numbers_get_smaller_by_their_own_width() -> None:
    data = like_bf16(8192)
    assert best_width(data) == 2
    assert len(pack(data, 2)) < 0.85 * len(data)
    assert len(pack(data, 2)) < len(pack(data, 1))
    noise = np.random.default_rng(0).integers(0, 256, 999, np.uint8)
    assert pack(noise, 2)[0] == RAW and len(pack(noise, 2)) == 1000


def test_a_frame_that_says_that_it_is_large_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    good = pack(np.zeros(4096, np.uint8), 1)
    with pytest.raises(BadValue):
        unpack(good + good, 4096)
    monkeypatch.setattr(packing, "_decompressor", lambda: pytest.fail("it is not even begun"))
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    for packed in (bytes([1]) + bomb, bytes([1]) + bomb[:40]):
        with pytest.raises(BadValue):
            unpack(packed, 4096)
    nameless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    with pytest.raises(BadValue):  # nor one that does not say it
        unpack(bytes([1]) + nameless, 4096)


@pytest.fixture(scope="module")
def values() -> Bytes:
    flat = like_bf16(RUN.num_pages * VALUE_BYTES // 2)
    return flat.reshape(RUN.num_pages, VALUE_BYTES)


def test_each_value_of_a_run_can_be_read_by_itself(values: Bytes) -> None:
    packed = memoryview(pack_run(RUN, values))
    assert len(packed) < values.nbytes
    at = Indexes(nullcontext()).get(RUN, lambda start, num: packed[start : start + num])
    assert at[-1] == len(packed)
    for number, value in enumerate(values):
        found = unpack(packed[at[number] : at[number + 1]], VALUE_BYTES)
        assert np.array_equal(found, value)


def test_a_damaged_index_is_found_and_a_good_one_read_once(values: Bytes) -> None:
    packed = pack_run(RUN, values)
    for at in range(index_bytes(RUN)):
        wrong = bytearray(packed[: index_bytes(RUN)])
        wrong[at] ^= 1
        with pytest.raises(BadValue):
            read_index(RUN, memoryview(wrong))
    asked: list[tuple[int, int]] = []

    def read(start: int, num: int) -> memoryview:
        asked.append((start, num))
        return memoryview(packed)[start : start + num]

    indexes = Indexes(nullcontext())
    assert indexes.get(RUN, read) == indexes.get(RUN, read)
    assert asked == [(0, index_bytes(RUN))]
    indexes.forget([RUN])
    indexes.get(RUN, read)
    assert len(asked) == 2
