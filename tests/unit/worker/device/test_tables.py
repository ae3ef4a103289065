"""Block tables keep what they were told, however much they grow."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.core.step import TableEntries
from services.worker.device.base.tables import BlockTables

LAYERS = 2
PLACES = st.tuples(st.integers(0, 70), st.integers(0, 500))


@given(st.lists(st.lists(PLACES, unique=True, max_size=4), max_size=8))
def test_an_entry_stays_until_another_takes_its_place(steps: list[list[tuple[int, int]]]) -> None:
    tables = BlockTables(LAYERS)
    told: dict[tuple[int, int], list[int]] = {}
    page = 0
    for places in steps:
        pages = []
        for place in places:
            told[place] = [page, page + 1]
            pages.append(told[place])
            page += 2
        slots, blocks = np.array(places, np.int32).reshape(-1, 2).T
        tables.enter(TableEntries(slots, blocks, np.array(pages, np.int32).reshape(-1, LAYERS)))
    for (slot, block), expected in told.items():
        assert tables.pages[:, slot, block].tolist() == expected
