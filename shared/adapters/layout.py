"""How an adapter's weights lie in pages of its model's KV: its *image*.

An image is k blocks of one page a layer, as KV is. In each layer, the first page begins with a
header: the scale of every target there, float32. Then come the weights in *tiles*: some rank rows
times some columns, contiguous, inside one page. A's rows are as PEFT stores them, B lies
transposed, so that both have a row for each rank. Rows come in fours, where zero rows fill up;
columns are cut where four rows are larger than a page. Tiles lie alike in all layers; those of
outer targets, which belong to no layer, take pages of the last layers, that are needed last.

The layout follows from the card and the ranks alone, so with those one knows where everything
is.
"""

from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.wire.messages.adapters import LoraCard, LoraTarget

ROWS_TOGETHER = 4
SAME_LAYER = -1
HEADER_ALIGN_BYTES = 64
SCALE_BYTES = 4
COLUMNS_MIN = 16  # of a cut tile, where a page has room for so many


@dataclass(frozen=True, slots=True)
class Tile:
    """Attributes:
    layer: whose page it is in; `SAME_LAYER`: that of the layer that asks.
    block: number of the block of the image.
    offset: from the beginning of the page, elements.
    """

    layer: int
    block: int
    offset: int
    row: int
    num_rows: int
    column: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class TargetTiles:
    """The weights of one target.

    Attributes:
        rank: rows, filled up to fours; 0: the adapter does not have this target.
        a: ``[rank, num_in]``.
        b: ``[rank, num_out]``, transposed.
    """

    target: LoraTarget
    rank: int
    a: tuple[Tile, ...] = ()
    b: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Attributes:
    num_blocks: of the image: pages a layer.
    targets: by number, outer ones behind those of each layer.
    """

    num_blocks: int
    targets: tuple[TargetTiles, ...]

    @property
    def tiles_max(self) -> int:
        """Tiles of one matrix, at most."""
        return max((max(len(each.a), len(each.b)) for each in self.targets), default=0)


def layout_image(card: LoraCard, ranks: dict[str, int]) -> ImageLayout:
    """Where the weights of an adapter with these ranks lie.

    Raises:
        InvalidRequest: a target is unknown, a rank out of range, or a page too small.
    """
    known = {each.name for each in (*card.targets, *card.outer)}
    for name, rank in ranks.items():
        if name not in known:
            raise InvalidRequest(f"ranks: {name!r} is no target of this model", name)
        if not 1 <= rank <= card.rank_max:
            raise InvalidRequest(f"ranks: {name!r}: {rank} is not 1 to {card.rank_max}", name)
    cursor = _Cursor(card)
    targets = [_place(cursor, each, ranks.get(each.name, 0)) for each in card.targets]
    cursor.leave_layers()
    targets += [_place(cursor, each, ranks.get(each.name, 0)) for each in card.outer]
    return ImageLayout(cursor.num_blocks, tuple(targets))


def image_bytes(card: LoraCard, layout: ImageLayout) -> int:
    """Of all pages of an image."""
    return layout.num_blocks * card.num_layers * card.page_bytes


def header_bytes(card: LoraCard) -> int:
    """Of the scales at the beginning of an image's first page in each layer."""
    size = SCALE_BYTES * (len(card.targets) + len(card.outer))
    return -(-size // HEADER_ALIGN_BYTES) * HEADER_ALIGN_BYTES


class _Cursor:
    """Where the next tile goes: pages of one layer after another, or the same in all of them."""

    def __init__(self, card: LoraCard) -> None:
        self._capacity = card.page_bytes // card.element_bytes
        self._header = -(-header_bytes(card) // card.element_bytes)
        if self._capacity < self._header + ROWS_TOGETHER:
            raise InvalidRequest(
                f"a page of {card.page_bytes} bytes holds no weights", "page_bytes"
            )
        self._cut_min = min(ROWS_TOGETHER * COLUMNS_MIN, self._capacity)
        self._num_layers = card.num_layers
        self._layer = SAME_LAYER
        self._block = 0
        self._offset = self._header
        self._shared_end = 0  # in the last block that all layers fill alike
        self._shared_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self._block + 1

    def leave_layers(self) -> None:
        """What comes now stands once: first where the layers' last pages have room, the last layer
        first."""
        self._shared_end, self._shared_blocks = self._offset, self._block + 1
        self._layer = self._num_layers - 1

    def take(self, rows_left: int, columns: tuple[int, int]) -> tuple[Tile, int]:
        """A tile of what is left: up to so many rows of these columns, or fewer columns of four
        rows. Returns it without its row, and how many rows it has."""
        first, last = columns
        width = last - first
        while True:
            room = self._capacity - self._offset
            fits_page = ROWS_TOGETHER * width <= self._capacity - self._header
            num_rows = min(rows_left, room // width // ROWS_TOGETHER * ROWS_TOGETHER)
            if not num_rows and not fits_page and room >= self._cut_min:
                num_rows, width = ROWS_TOGETHER, _cut(width, room // ROWS_TOGETHER)
            if num_rows:
                tile = Tile(self._layer, self._block, self._offset, 0, num_rows, first, width)
                self._offset += num_rows * width
                return tile, num_rows
            self._turn_page()

    def _turn_page(self) -> None:
        if self._layer in {SAME_LAYER, 0}:
            self._block += 1
            self._layer = SAME_LAYER if self._layer == SAME_LAYER else self._num_layers - 1
        else:
            self._layer -= 1
        is_shared = self._layer != SAME_LAYER and self._block < self._shared_blocks
        self._offset = self._shared_end if is_shared else 0


def _cut(width: int, room: int) -> int:
    """Columns of a tile that has room for so many, in whole groups where that is possible."""
    return min(width, room // COLUMNS_MIN * COLUMNS_MIN or room)


def _place(cursor: _Cursor, target: LoraTarget, rank: int) -> TargetTiles:
    num_rows = -(-rank // ROWS_TOGETHER) * ROWS_TOGETHER
    a = _tiles(cursor, num_rows, target.num_in)
    return TargetTiles(target, num_rows, a, _tiles(cursor, num_rows, target.num_out))


def _tiles(cursor: _Cursor, num_rows: int, num_columns: int) -> tuple[Tile, ...]:
    tiles: list[Tile] = []
    row = 0
    while row < num_rows:
        column, height = 0, num_rows - row
        while column < num_columns:  # all columns of some rows, before the next rows
            tile, num = cursor.take(height, (column, num_columns))
            height = min(height, num)
            tiles.append(
                Tile(tile.layer, tile.block, tile.offset, row, height, column, tile.num_columns)
            )
            column += tile.num_columns
        row += height
    return tuple(tiles)
