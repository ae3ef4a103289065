"""``POST /v1/responses/compact``: a conversation as what its user said and a summary."""

from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.responses import COMPACTION, ReadResponsesBody
from services.frontend.api.bodies.schemas import answers
from services.frontend.api.responses.chats import OWN_WORDS
from services.frontend.api.responses.opening import opened
from services.frontend.api.responses.writing import usage_of
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.replies import ReplyOfChoice
from services.frontend.api.text.requests import errors_named
from services.frontend.api.text.writing import Writer
from services.frontend.app import App
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.core.replies.choice import Piece
from services.frontend.core.sessions.compaction import SUMMARIZE, compacted, left
from services.frontend.core.sessions.response_items import plain, shown
from services.frontend.core.sessions.stored_responses import ITEM_PREFIXES, new_response_id
from services.frontend.core.tools import Said
from services.frontend.http.request import Origin
from services.frontend.prepare.pipeline import prepare_chat
from services.frontend.prepare.reading import Reading
from services.frontend.prepare.requests import ChatRequest, Truncation
from shared.ids import public_id

router = APIRouter(tags=["text"])


@router.post(
    "/v1/responses/compact",
    responses=answers(COMPACTION),
    openapi_extra=takes(ReadResponsesBody),
)
async def compact(request: Request) -> Response:
    """A shorter conversation to go on from in place of this one."""
    return await respond(request, ReadResponsesBody, open_compaction)


async def open_compaction(app: App, body: ReadResponsesBody, origin: Origin) -> "CompactionWriter":
    """Look up what it goes on from, check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    ask = {"type": "message", "role": "user", "content": SUMMARIZE}
    with HeldCapacity(app.capacity_of(origin.tenant)) as held, errors_named(OWN_WORDS):
        asked = await opened(app, body, origin, held.grow_to, [ask])
        prepared = await prepare_chat(app, _alone(asked.chat))
    form = asked.form
    said = [kept for item in form.past.items if (kept := plain(item)) is not None]
    items = left([*said, *form.given[:-1]])
    return CompactionWriter(Generation(app, prepared.plan), items, prepared.reading)


def _alone(chat: ChatRequest) -> ChatRequest:
    """It as no turn of a session, with a reply of any form, that calls nothing. If it is too long
    its beginning is cut off."""
    asked = chat.generation
    return replace(
        chat,
        generation=replace(
            asked,
            owner=replace(asked.owner, session_id=None),
            turn=replace(asked.turn, agent=None),
            structure=None,
            truncation=Truncation(keep=-1),
        ),
        tools=None,
    )


class CompactionWriter(Writer):
    """One choice, as a summary.

    Args:
        items: that are left beside it.
        reading: how the reply is read.
    """

    def __init__(
        self, generation: Generation, items: list[dict[str, Any]], reading: Reading
    ) -> None:
        super().__init__(generation, is_streamed=False)
        self._items = items
        self._reply = ReplyOfChoice(reading)
        self._said: list[str] = []

    def num_entries(self, piece: Piece | None) -> int:
        return 0

    def chunks(self, piece: Piece) -> list[bytes]:
        self.add(piece)
        return []

    def last_chunks(self) -> list[bytes]:
        return [self.whole()]

    def add(self, piece: Piece) -> None:
        for part in self._reply.take(piece):
            if isinstance(part, Said):
                self._said.append(part.text)

    def whole(self) -> bytes:
        items = [shown(item, public_id(ITEM_PREFIXES[item["type"]])) for item in self._items]
        summary = compacted("".join(self._said).strip())
        content = {"type": "compaction", "encrypted_content": summary}
        return orjson.dumps(
            {
                "id": new_response_id(None),
                "object": "response.compaction",
                "created_at": self.generation.created_s,
                "output": [*items, shown(content, public_id(ITEM_PREFIXES["compaction"]))],
                "usage": usage_of(self.generation),
            }
        )
