"""Answers of the Responses API against the official client's models, with every required field."""

import json
from typing import Any

from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
Kind = type[Response | CompactedResponse | Conversation | ConversationItemList]


def check(kind: Kind, value: Any) -> None:
    """That all that the client's schema requires is there, and of its types."""
    kind.model_validate(value)


def events_of(stream: str) -> list[dict[str, Any]]:
    """A stream's events, each named as its data is and valid; numbers leave none out."""
    *parts, end = stream.split("\n\n")
    assert end == "", "it was cut off"
    events = []
    for part in parts:
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(events)))
    return events
