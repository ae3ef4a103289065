"""How the Triton kernels cut their work: sizes of tiles, and how many programs share a context.

Everything here comes from numbers that the host has anyway, so a launch can be recorded in a CUDA
graph and replayed for other lengths.
"""

from dataclasses import dataclass
from functools import cache

SPLITS_MAX = 128
PARTS_MAX = 4  # of a decode, where there are more programs than multiprocessors
DECODE_SHARE_MIN_TOKENS = 128  # below, writing partial results costs more than the company brings
DECODE_SHARE_MAX_TOKENS = 2048  # above, one long context outlasts all the others of its batch
PREFILL_SHARE_MIN_TOKENS = 512  # a tile has many rows, so its partial results are many bytes
# Of packed batches. A decode in one has its tile for itself: fewer rows leave less of it empty, and
# prompts computed as fast on an H200.
PACKED_ROWS = 64
PACKED_PARTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Tiles:
    """One tile of work.

    Attributes:
        rows: queries times the heads of a group, at most.
        keys: keys that are multiplied at once; a page is cut if it has more.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


# By (decode, bytes of an element, head_dim padded to a power of two). Chosen on paper for Hopper;
# those of bf16 at head_dim 128 were then timed on an H200, with 2,000 tokens of context. 64 decodes
# read at 0.97 of the memory's rate (with 3 stages 0.87, with 2 0.99), 16 at 0.86 (0.84, 0.76), and
# one, which has 8 MB a layer to read, takes 9 us (9, 10). A prompt of 4,096 computes at 0.66 of the
# matrix rate (64 rows: 0.67; 2 stages, 32 keys or 256 rows: 0.44 to 0.52).
# What was held to, and seen in the code that Triton 3.9 makes for it (no register is spilled, the
# copies of keys and values are asynchronous):
# - Keys and values of `num_stages - 1` tiles are on their way or being multiplied. A decode needs
#   about 36 KB on its way a multiprocessor (4.8 TB/s over 132 of them, 1 us of latency); a tile of
#   bf16 at head_dim 128 is 32 KB.
# - A decode's stages fit in 227 KB at least twice, so that one program's beginning is hidden
#   behind another's middle: 52 KB, 105 KB and 105 KB at head_dim 64, 128 and 256.
# - A chunk has 128 rows: with fewer, keys would be read more often than the L2 can give them (a
#   byte of bf16 pays for 128 operations), and wgmma takes 64 a warp group. 8 warps, because 4
#   spill at head_dim 128; 32 keys at 256, because 64 leave no register.
# - float32 has no matrix unit that keeps its precision: small tiles, plain multiplications.
_TABLE = {
    (True, 2, 64): Tiles(16, 64, 4, 4),
    (True, 2, 128): Tiles(16, 64, 4, 4),
    (True, 2, 256): Tiles(16, 32, 4, 4),
    (True, 4, 64): Tiles(16, 32, 4, 4),
    (True, 4, 128): Tiles(16, 32, 8, 3),
    (True, 4, 256): Tiles(16, 16, 4, 4),
    (False, 2, 64): Tiles(128, 64, 8, 3),
    (False, 2, 128): Tiles(128, 64, 8, 3),
    (False, 2, 256): Tiles(128, 32, 8, 3),
    (False, 4, 64): Tiles(32, 32, 8, 3),
    (False, 4, 128): Tiles(32, 16, 8, 3),
    (False, 4, 256): Tiles(32, 16, 8, 3),
}


def choose_tiles(
    *, decode: bool, element_bytes: int, head_dim: int, group: int, block_tokens: int
) -> Tiles:
    """The tile for `group` query heads a KV head; never more keys than a page has."""
    tiles = _TABLE[decode, element_bytes, max(64, power_of_two(head_dim))]
    rows = max(tiles.rows, power_of_two(group))
    return Tiles(rows, min(tiles.keys, block_tokens), tiles.num_warps, tiles.num_stages)


def choose_packed_tiles(
    *, element_bytes: int, head_dim: int, group: int, block_tokens: int
) -> Tiles:
    """The tile of a packed batch, whose sequences may be decodes or chunks."""
    tiles = choose_tiles(
        decode=False,
        element_bytes=element_bytes,
        head_dim=head_dim,
        group=group,
        block_tokens=block_tokens,
    )
    if tiles.rows <= PACKED_ROWS:
        return tiles
    rows = max(PACKED_ROWS, power_of_two(group))
    # A warp of Hopper's matrix unit has 16 rows; a row of 256 sums needs the registers of two.
    return Tiles(rows, tiles.keys, 4 if head_dim <= 128 and rows == PACKED_ROWS else 8, 3)


@dataclass(frozen=True, slots=True)
class Splits:
    """Among how many programs the keys of one tile of queries are shared.

    A context of n tiles of keys is cut into equal shares for `wanted` programs, but into none
    smaller than `share_min` or larger than `share_max`, nor into more than `count` (all in tiles of
    keys). The kernels work this out from the true length; `count` programs are launched for all.
    """

    count: int
    wanted: int
    share_min: int
    share_max: int


def choose_splits(
    *, decode: bool, num_programs: int, context_len_max: int, keys: int, multiprocessors: int
) -> Splits:
    """Enough shares to keep every multiprocessor busy.

    Args:
        num_programs: tiles of queries times KV heads times sequences, at most.
        context_len_max: no context is longer. (If one is, its shares are larger, nothing else.)
        keys: in a tile.

    >>> choose_splits(
    ...     decode=True, num_programs=8, context_len_max=2000, keys=64, multiprocessors=132
    ... )
    Splits(count=15, wanted=15, share_min=2, share_max=32)
    """
    num_tiles = max(1, -(-context_len_max // keys))
    if decode:
        wanted = _even(num_programs, multiprocessors)
    else:
        wanted = max(1, multiprocessors // max(1, num_programs))
    share_min = max(1, (DECODE_SHARE_MIN_TOKENS if decode else PREFILL_SHARE_MIN_TOKENS) // keys)
    share_max = DECODE_SHARE_MAX_TOKENS // keys if decode else max(share_min, num_tiles)
    count = max(min(wanted, -(-num_tiles // share_min)), -(-num_tiles // share_max))
    return Splits(min(count, SPLITS_MAX), wanted, share_min, share_max)


def choose_packed_splits(
    *, num_programs: int, context_len_max: int, keys: int, multiprocessors: int
) -> Splits:
    """Shares of a packed batch, where it is not known how many tiles there will be.

    Args:
        num_programs: tiles that the rows fill, times KV heads. (As many sequences more may have a
            tile of their own, which is not full.)

    >>> choose_packed_splits(
    ...     num_programs=8, context_len_max=4096, keys=64, multiprocessors=132
    ... )
    Splits(count=8, wanted=8, share_min=8, share_max=64)
    """
    num_tiles = max(1, -(-context_len_max // keys))
    share_min = max(1, PREFILL_SHARE_MIN_TOKENS // keys)
    wanted = min(max(1, 2 * multiprocessors // max(1, num_programs)), PACKED_PARTS_MAX)
    count = min(wanted, -(-num_tiles // share_min))
    return Splits(count, wanted, share_min, max(share_min, num_tiles))


@cache
def _even(num_programs: int, multiprocessors: int) -> int:
    """Among how many each program is to be shared, so that no multiprocessor has much more to read
    than the others: the fewest with which the fullest has at most a tenth more than it could have.

    One that has a program at all has as many bytes under way as it needs: on an H200, 128 programs
    of 2,000 tokens took 36 us whole, 40 halved and 45 in quarters; 512 took 127, 127 and 135.

    >>> [_even(8 * rows, 132) for rows in (1, 4, 16, 20, 24, 32, 64, 100)]
    [15, 4, 1, 3, 2, 1, 1, 2]
    """

    def fullest(parts: int) -> float:
        return -(-num_programs * parts // multiprocessors) / parts

    most = max(PARTS_MAX, 2 * multiprocessors // max(1, num_programs))
    least = min(fullest(parts) for parts in range(1, most + 1))
    return next(parts for parts in range(1, most + 1) if fullest(parts) <= 1.1 * least)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`.

    >>> [power_of_two(number) for number in (1, 2, 3, 80, 128)]
    [1, 2, 4, 128, 128]
    """
    return 1 << (number - 1).bit_length()
