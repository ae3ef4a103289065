"""Whatever the official clients' types let a history hold is taken, or refused by its name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import typing_extensions
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionMessage,
    ChatCompletionMessageParam,
)
from openai.types.responses.response_input_param import ResponseInputItemParam

from services.frontend.core import message_blocks
from services.frontend.core.sessions import response_items
from services.frontend.prepare.messages import chat_messages
from shared.errors import InvalidRequest

DEPTH_MAX = 6
Sample = dict[str, Any]


def samples(hint: Any, depth: int = 0) -> list[Any]:
    """Values of a type: each member of each union is in one, beside the first of the others."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing_extensions.Required, typing_extensions.NotRequired, Annotated):
        return samples(arguments[0], depth)
    if origin is Literal:
        return list(arguments)
    if origin is Union or type(hint).__name__ == "UnionType":
        return [value for each in arguments for value in samples(each, depth)]
    if depth > DEPTH_MAX:
        return [{}]
    if typing_extensions.is_typeddict(hint):
        return _objects(hint, depth)
    if origin in (dict, Mapping) or hint in (object, dict):
        return [{"key": "x"}]
    if origin is not None and issubclass(origin, Iterable):
        return [[value] for value in samples(arguments[0], depth + 1)]
    return [{str: "words", int: 1, float: 1.0, bool: True, type(None): None}.get(hint, "words")]


def _objects(hint: Any, depth: int) -> list[Sample]:
    hints = typing_extensions.get_type_hints(hint, include_extras=True)
    of = {name: samples(member, depth + 1) or ["words"] for name, member in hints.items()}
    needed = {name: of[name][0] for name, member in hints.items() if _is_needed(hint, member)}
    return [needed] + [needed | {name: value} for name, values in of.items() for value in values]


def _is_needed(hint: Any, member: Any) -> bool:
    # Postponed annotations hide `Required` from `__required_keys__`.
    origin = get_origin(member)
    return origin is typing_extensions.Required or (
        bool(hint.__total__) and origin is not typing_extensions.NotRequired
    )


def texts_in(value: Any) -> set[str]:
    """All that was said in it; thoughts are not."""
    if isinstance(value, list):
        return set().union(*map(texts_in, value))
    if not isinstance(value, dict) or value.get("type") == "reasoning":
        return set()
    own = {value[name] for name in ("text", "refusal") if isinstance(value.get(name), str)}
    return own.union(*map(texts_in, value.values()))


def check(given: Sample, take: Callable[[], list[Sample]]) -> None:
    """It is taken with all that was said in it, or the error names what is not taken."""
    refused = None
    try:
        taken = take()
    except InvalidRequest as error:
        refused = error
    if refused is not None:
        kinds = {repr(value) for name, value in _members(given) if name in ("type", "role")}
        names = {name for name, _ in _members(given)} - {"type"} | {"call_id", "item_reference"}
        assert refused.param
        assert any(name in refused.message for name in kinds | names), (given, refused.message)
        return
    said = "".join(str(message["content"]) for message in taken)
    assert all(text in said for text in texts_in(given)), (given, taken)


def _members(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [member for each in value for member in _members(each)]
    if not isinstance(value, dict):
        return []
    return [*value.items(), *(member for each in value.values() for member in _members(each))]


def test_every_message_of_a_chat_is_taken_or_refused_by_name() -> None:
    given = samples(ChatCompletionMessageParam)
    assert len(given) > 30 and any("refusal" in str(each) for each in given)
    for message in given:
        check(message, lambda message=message: chat_messages([message]))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]}, "ab"),
        ({"content": None, "refusal": "no"}, "no"),
        ({"content": "Well.", "refusal": "no"}, "Well.\nno"),
        ({"content": "Hi", "refusal": None, "audio": None, "annotations": []}, "Hi"),
        ({"content": "Hi", "function_call": None, "tool_calls": None, "name": "me"}, "Hi"),
        ({"content": "Hi", "logprobs": {"content": []}, "reasoning_details": [{}]}, "Hi"),
    ],
)
def test_what_the_assistant_said_is_text(message: Sample, said: str) -> None:
    assert chat_messages([{"role": "assistant", **message}])[0]["content"] == said


def test_an_answer_comes_back_as_the_client_dumps_it() -> None:
    message = ChatCompletionMessage(role="assistant", content="Hi", annotations=[])
    for given in (message.model_dump(), message.model_dump(exclude_none=True), message.to_dict()):
        assert chat_messages([given]) == [{"role": "assistant", "content": "Hi"}]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, "content[0]"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": 1}]}, "refusal"),
        ({"role": "assistant", "refusal": ["no"]}, "refusal"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "'image_url'"),
        ({"role": "assistant", "content": [{"type": ["text"]}]}, "content[0]"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}, "'custom'"),
        ({"role": "assistant", "audio": {"id": "a"}}, "audio"),
        ({"role": "function", "name": "f", "content": "x"}, "role"),
    ],
)
def test_what_is_not_taken_is_named(message: Sample, place: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        chat_messages([message])
    assert place in error.value.message


def test_every_item_of_a_response_is_taken_or_refused_by_name() -> None:
    given = [item for item in samples(ResponseInputItemParam) if isinstance(item, dict)]
    kinds = {str(item.get("type")) for item in given}
    assert len(kinds) > 20
    asked = {"role": "user", "content": "Hi"}
    for item in given:
        if item.get("type") in response_items.HOSTED:  # the response has a warning of each
            assert len(response_items.messages_of([item, asked])) == 1
            continue
        check(item, lambda item=item: response_items.messages_of([item, asked]))  # type: ignore[misc]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": None, "role": "assistant", "content": "no"},
        {"role": "assistant", "phase": "final_answer", "status": "completed", "id": "m",
         "content": [{"type": "output_text", "text": "no", "annotations": [], "logprobs": []}]},
    ],
)  # fmt: skip
def test_items_of_answers_are_taken(item: Sample) -> None:
    messages = response_items.messages_of([item])
    assert messages == [{"role": "assistant", "content": "no"}]
    assert response_items.plain(item) == {"type": "message", **messages[0]}


def test_a_reference_is_named_although_it_need_not_say_what_it_is() -> None:
    for item in ({"id": "msg_1"}, {"id": "msg_1", "type": None}):
        with pytest.raises(InvalidRequest, match="item_reference"):
            response_items.messages_of([item])


def test_every_block_of_a_message_is_taken_or_refused_by_name() -> None:
    types = pytest.importorskip("anthropic.types", reason="anthropic is not installed")
    asked = {"role": "user", "content": "Hi"}
    for message in samples(types.MessageParam):
        # What calls tools is followed by what they answered; the check is of its blocks.
        given = [message, asked] if message.get("role") == "assistant" else [message]
        check(message, lambda given=given: message_blocks.messages_of(given))  # type: ignore[misc]


def test_samples_have_every_member() -> None:
    said = [str(sample) for sample in samples(ChatCompletionAssistantMessageParam)]
    for name in ("'refusal': 'words'", "'type': 'refusal'", "'custom'", "'audio': None"):
        assert any(name in each for each in said), name
