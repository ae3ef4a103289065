"""Which tile of rows a program has, where segments of any lengths lie behind each other (Triton).

A segment's tiles are numbered from its first row, divided by a tile's rows, plus its own number on:
so each has as many numbers as it can need, and some have one too many. A grid that is sized by the
numbers of rows and of segments, ``rows // tile_rows + segments``, holds every tile, whatever the
lengths are.
"""

import triton
import triton.language as tl

SEGMENTS_PADDED = 64  # for fewer segments, no kernel is compiled again


def padded(num_segments: int) -> int:
    """Segments that a program looks at, a power of two."""
    return max(SEGMENTS_PADDED, int(triton.next_power_of_2(num_segments)))


@triton.jit
def find_tile(  # type: ignore[no-untyped-def]
    starts, number, num_segments, tile_rows: tl.constexpr, segments_padded: tl.constexpr
):  # fmt: skip
    """The segment that a tile belongs to, and which of its tiles it is: below 0 in front of the
    first segment, and behind the segment's last row where it is one too many.

    Args:
        starts: int32 [num_segments]: first row of each, rising.
        number: of the tile.
    """
    segments = tl.arange(0, segments_padded)
    begins = tl.load(starts + segments, mask=segments < num_segments, other=0)
    is_before = (segments < num_segments) & (begins // tile_rows + segments <= number)
    segment = tl.maximum(tl.sum(is_before.to(tl.int32), 0) - 1, 0)
    return segment, number - tl.load(starts + segment) // tile_rows - segment
