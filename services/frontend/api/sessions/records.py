"""``GET`` and ``DELETE /v1/sessions/{id}``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.schemas import SESSION, SESSION_DELETED, answers
from services.frontend.api.sessions.advisories import SessionPath, key_of
from services.frontend.api.sessions.deletion import delete_everywhere
from services.frontend.app import app_of
from services.frontend.http.answers import Json
from shared.blocks import KEY_BYTES
from shared.errors import NotFound

router = APIRouter(tags=["sessions"])


@router.get("/v1/sessions/{session_id:path}", responses=answers(SESSION))
async def get_session(request: Request, session_id: SessionPath) -> Response:
    """What is remembered of a session; its text is not shown."""
    key = key_of(request, session_id)
    record = await app_of(request).sessions.read(key.tenant, key.session_id)
    if record is None:
        raise NotFound(f"no session {key.session_id!r}", "session_id")
    return Json(
        {
            "id": record.session_id,
            "object": "session",
            "model": record.model_id,
            "num_tokens": record.num_tokens,
            "num_blocks": len(record.block_keys) // (2 * KEY_BYTES),
            "num_turns": record.num_turns,
            "last_used": record.last_used,
            "expires": record.expires,
        }
    )


@router.delete("/v1/sessions/{session_id:path}", responses=answers(SESSION_DELETED))
async def delete_session(request: Request, session_id: SessionPath) -> Response:
    """Forget a session and its KV everywhere."""
    key = key_of(request, session_id)
    found, num_blocks = await delete_everywhere(app_of(request), key)
    if not found and not num_blocks:
        raise NotFound(f"no session {key.session_id!r}", "session_id")
    return Json(
        {
            "id": key.session_id,
            "object": "session.deleted",
            "deleted": True,
            "num_blocks": num_blocks,
        }
    )
