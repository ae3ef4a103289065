"""Where an adapter's weights lie."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.adapters.layout import (
    ROWS_TOGETHER,
    SAME_LAYER,
    ImageLayout,
    Tile,
    header_bytes,
    layout_image,
)
from shared.errors import InvalidRequest
from shared.wire.messages import LoraCard, LoraTarget

SIZES = st.integers(1, 300)


@st.composite
def cards(draw: st.DrawFn) -> LoraCard:
    element_bytes = draw(st.sampled_from([2, 4]))

    def targets(names: str) -> list[LoraTarget]:
        sizes = draw(st.lists(st.tuples(SIZES, SIZES), max_size=4))
        return [
            LoraTarget(name=f"{names}{at}", num_in=num_in, num_out=num_out)
            for at, (num_in, num_out) in enumerate(sizes)
        ]

    return LoraCard(
        layers_path="model.layers",
        num_layers=draw(st.integers(1, 5)),
        element_bytes=element_bytes,
        page_bytes=draw(st.integers(64, 2048)) * element_bytes,
        targets=targets("inner"),
        outer=targets("outer"),
    )


@given(cards(), st.data())
@settings(max_examples=300, deadline=None)
def test_every_weight_lies_in_one_place_and_no_two_share_one(
    card: LoraCard, data: st.DataObject
) -> None:
    names = [each.name for each in (*card.targets, *card.outer)]
    ranks = {
        name: data.draw(st.integers(1, 40), name) for name in names if data.draw(st.booleans())
    }
    layout = layout_image(card, ranks)
    used: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, each in enumerate(layout.targets):
        assert each.rank == -(-ranks.get(each.target.name, 0) // ROWS_TOGETHER) * ROWS_TOGETHER
        for tiles, num_columns in ((each.a, each.target.num_in), (each.b, each.target.num_out)):
            cells = sum(tile.num_rows * tile.num_columns for tile in tiles)
            assert cells == each.rank * num_columns
            assert len({(tile.row, tile.column) for tile in tiles}) == len(tiles)
            for tile in tiles:
                is_outer = number >= len(card.targets)
                assert (tile.layer == SAME_LAYER) != is_outer
                assert tile.num_rows % ROWS_TOGETHER == 0
                assert tile.row + tile.num_rows <= each.rank
                assert tile.column + tile.num_columns <= num_columns
                _use(used, tile, card, layout)
    for places in used.values():
        places.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places)), "overlap"


def _use(
    used: dict[tuple[int, int], list[tuple[int, int]]],
    tile: Tile,
    card: LoraCard,
    layout: ImageLayout,
) -> None:
    end = tile.offset + tile.num_rows * tile.num_columns
    assert 0 <= tile.block < layout.num_blocks
    assert end <= card.page_bytes // card.element_bytes
    assert tile.block > 0 or tile.offset * card.element_bytes >= header_bytes(card)
    layers = range(card.num_layers) if tile.layer == SAME_LAYER else [tile.layer]
    for layer in layers:
        used.setdefault((layer, tile.block), []).append((tile.offset, end))


def test_what_is_no_target_or_rank_is_refused() -> None:
    card = LoraCard(
        layers_path="m", num_layers=2, element_bytes=2, page_bytes=4096,
        targets=[LoraTarget(name="q_proj", num_in=8, num_out=8)],
    )  # fmt: skip
    with pytest.raises(InvalidRequest, match="'up' is no target"):
        layout_image(card, {"up": 4})
    with pytest.raises(InvalidRequest, match="257 is not 1 to 256"):
        layout_image(card, {"q_proj": 257})
