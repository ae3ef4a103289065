"""Messages to bytes and back."""

import dataclasses
import inspect
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import MalformedMessage
from shared.ids import TurnId
from shared.wire import messages
from shared.wire.messages import (
    Advisory,
    KvBlock,
    KvStaged,
    StepOutput,
    TurnCancel,
    decode,
    encode,
    pack_ints,
    unpack_ints,
)

TYPES = [
    kind
    for kind in vars(messages).values()
    if inspect.isclass(kind) and dataclasses.is_dataclass(kind)
]
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(codec="utf-8"), max_size=20),
}
INT32 = st.integers(-(2**31), 2**31 - 1)
UINT64 = st.integers(0, 2**64 - 1)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type that JSON can hold; messages recursively."""
    if isinstance(hint, NewType):
        return values(hint.__supertype__)
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        fields = {name: values(kind) for name, kind in get_type_hints(hint).items()}
        return st.builds(hint, **fields)
    arguments = get_args(hint)
    match get_origin(hint):
        case None:
            return SCALARS[hint]
        case origin if origin is Literal:
            return st.sampled_from(arguments)
        case origin if origin in (Union, UnionType):
            return st.one_of(*map(values, arguments))
        case origin if origin is tuple:
            return st.tuples(*map(values, arguments))
        case origin if origin is dict:
            return st.dictionaries(*map(values, arguments), max_size=2)
        case origin:
            assert origin is list, f"no strategy for {hint}"
            return st.lists(values(arguments[0]), max_size=2)


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_every_message_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert decode(kind, encode(message)) == message


@pytest.mark.parametrize("kind", TYPES)
def test_every_message_is_frozen_slotted_and_named(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))


def test_fields_of_a_later_release_are_ignored_and_missing_ones_get_defaults() -> None:
    advisory = decode(Advisory, b'{"session_id": "s", "from_the_future": [1, 2]}')
    assert advisory == Advisory(session_id=advisory.session_id)
    assert advisory.priority == 1


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"{}", "turn_id"),
        (b'{"turn_id": 7}', "turn_id"),
        (b'{"turn_id": "t", "attempt": "many"}', "attempt"),
    ],
)
def test_a_malformed_message_names_the_field(data: bytes, where: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(TurnCancel, data)
    assert caught.value.param == where
    assert caught.value.message.startswith(f"TurnCancel: {where}: ")


def test_a_fault_deep_inside_is_named_by_its_path() -> None:
    data = b'{"worker_id": "w", "deltas": [{"turn_id": "t", "attempt": 1, "index": null}]}'
    with pytest.raises(MalformedMessage) as caught:
        decode(StepOutput, data)
    assert caught.value.param == "deltas.0.index"


def test_a_message_is_plain_json() -> None:
    assert encode(TurnCancel(turn_id=TurnId("t"))) == (b'{"turn_id":"t","attempt":0,"num_kept":0}')


@given(st.lists(INT32))
@settings(max_examples=50, deadline=None)
def test_tokens_travel_packed(values: list[int]) -> None:
    assert unpack_ints(pack_ints(values)) == values


@given(st.lists(UINT64))
@settings(max_examples=50, deadline=None)
def test_checksums_travel_packed(values: list[int]) -> None:
    assert unpack_ints(pack_ints(values, "Q"), "Q") == values


@pytest.mark.parametrize("text", ["AAA", "AAAA", "!!!!", "AAAAAA==\n"])
def test_what_is_no_packed_integers_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessage, match="packed integers"):
        unpack_ints(text)


def test_a_packed_block_is_small() -> None:
    tokens = pack_ints(range(64))
    assert len(tokens) == 344  # a JSON list of them would not be smaller, and far slower
    assert KvBlock(key="", parent="", tokens=tokens, pages="", checksums="").tokens == tokens


def test_a_field_with_an_alias_keeps_its_name_on_the_wire() -> None:
    """Peers of an earlier release send and read `num_from_disk`."""
    staged = KvStaged(ticket=7, num_pages_loading=3)
    data = encode(staged)
    assert b'"num_from_disk":3' in data and b"num_pages_loading" not in data
    assert decode(KvStaged, data) == staged
    assert decode(KvStaged, b'{"num_from_disk":3}') == KvStaged(num_pages_loading=3)
