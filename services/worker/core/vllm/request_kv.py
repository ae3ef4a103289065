"""How a request's KV is found and kept, from what vLLM has of it."""

import logging
from typing import Any

from services.worker.core.vllm.messages import PARAMS, RequestKv
from shared.blocks import root_key
from shared.errors import MalformedMessage
from shared.ids import DEFAULT_TENANT, SessionId
from shared.owners import owner_key
from shared.wire.messages import decode

log = logging.getLogger(__name__)

SESSION_ID = "session_id"  # of a stock server's `kv_transfer_params`
SESSION_ID_MAX = 256


def worker_kv(request: Any) -> RequestKv | None:
    """What our worker says of a request's KV, if it does."""
    data = (request.kv_transfer_params or {}).get(PARAMS)
    if not isinstance(data, str):
        return None
    try:
        return decode(RequestKv, data.encode())
    except MalformedMessage:
        log.exception("a request's KV parameters were not understood")
        return None


def stock_kv(request: Any, fingerprint: str) -> RequestKv | None:
    """How the KV of a stock server's request is kept; None: its tokens alone do not name it."""
    if request.lora_request is not None or request.mm_features or request.prompt_token_ids is None:
        return None
    named, session = (request.kv_transfer_params or {}).get(SESSION_ID), None
    if isinstance(named, str) and 0 < len(named) <= SESSION_ID_MAX:
        session = SessionId(named)
    return RequestKv(
        name=request.request_id,
        root=root_key(fingerprint, DEFAULT_TENANT, "", request.cache_salt or "").hex(),
        owner=owner_key(DEFAULT_TENANT, session).hex(),
        must_ask=True,
    )
