"""What a body holds is told without parsing it, however it is cut into slices."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.http.json_limits import CONTAINERS_MAX, JsonSize
from shared.errors import InvalidRequest

TEXTS = st.text(alphabet='ab,[]{}"\\\n:\u20ac', max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def containers_and_commas(value: Any) -> tuple[int, int]:
    """What there is outside strings, by walking through the value."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [
        containers_and_commas(each)
        for each in (value if isinstance(value, list) else value.values())
    ]
    commas = max(len(inner) - 1, 0)
    return 1 + sum(n for n, _ in inner), commas + sum(n for _, n in inner)


@given(VALUES, st.booleans(), st.lists(st.integers(1, 40), min_size=1))
def test_values_are_counted_outside_strings_only(
    value: Any, ascii_only: bool, lengths: list[int]
) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    shape, at, turn = JsonSize(10**9), 0, 0
    while at < len(data):
        length = lengths[turn % len(lengths)]
        shape.feed(data[at : at + length])
        at, turn = at + length, turn + 1
    containers, commas = containers_and_commas(value)
    assert shape.num_containers == containers
    assert shape.num_values == 1 + containers + commas


def test_too_many_are_refused_and_a_long_text_is_not() -> None:
    JsonSize(9).feed(b'{"prompt": "' + b"[,{" * 10_000 + b'"}')
    JsonSize(9).feed(b"[[1,2,3,4,5,6,7]]")
    for data, values_max in ((b"[[1,2,3,4,5,6,7,8]]", 9), (b"[" * (CONTAINERS_MAX + 1), 10**9)):
        with pytest.raises(InvalidRequest) as caught:
            JsonSize(values_max).feed(data)
        assert caught.value.code == "too_many_values"
