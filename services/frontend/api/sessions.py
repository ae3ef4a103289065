"""``GET`` and ``DELETE /v1/sessions/{id}``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.advisories import SessionPath, key_of
from services.frontend.api.answers import Json
from services.frontend.api.schemas import SESSION, SESSION_DELETED, answers
from services.frontend.app import app_of
from shared.blocks import KEY_BYTES
from shared.errors import NotFound
from shared.messages import KvDelete
from shared.subjects import SESSION_DELETE

DELETE_TIMEOUT_S = 1.0


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
    """Forget a session and its KV on every host. The kvstores come first: they find its blocks by
    the record.
    """
    app, key = app_of(request), key_of(request, session_id)
    replies = await app.bus.gather(
        SESSION_DELETE,
        KvDelete(session_id=key.session_id, tenant=key.tenant),
        timeout_s=DELETE_TIMEOUT_S,
        num_max=max(len(app.models.hosts()), 1),
    )
    found = await app.sessions.delete(key.tenant, key.session_id)
    if not found and not any(reply.found for reply in replies):
        raise NotFound(f"no session {key.session_id!r}", "session_id")
    return Json(
        {
            "id": key.session_id,
            "object": "session.deleted",
            "deleted": True,
            "num_blocks": sum(reply.num_blocks for reply in replies),
        }
    )
