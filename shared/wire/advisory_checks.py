"""What an advisory may say, wherever it is read."""

import math
from collections.abc import Iterator

from shared.errors import InvalidRequest
from shared.ids import TENANT_TOKEN_CHARS_MAX, subject_token
from shared.wire.messages import Advisory

SESSION_ID_CHARS_MAX = 256
PRIORITY_MAX = 9
EXPECTED_ARRIVAL_MAX_S = 86_400.0
TTL_MAX_MS = 86_400_000
NAME_CHARS_MAX = 256
RANKS_MAX = 256  # targets of an adapter


def check_advisory(advisory: Advisory) -> None:
    """Refuse what cannot be tracked, or is too long to be kept.

    Raises:
        InvalidRequest: names the field at fault.
    """
    if not 1 <= len(advisory.session_id) <= SESSION_ID_CHARS_MAX:
        raise InvalidRequest(
            f"session_id must have 1 to {SESSION_ID_CHARS_MAX} characters", param="session_id"
        )
    if not 0 <= advisory.priority <= PRIORITY_MAX:
        raise InvalidRequest(f"priority must be 0 to {PRIORITY_MAX}", param="priority")
    for name, value, chars_max in _texts(advisory):
        if len(value) > chars_max:
            raise InvalidRequest(f"{name} must have at most {chars_max} characters", name)
    if advisory.frontend_id is not None:
        try:  # it becomes part of a subject
            subject_token(advisory.frontend_id)
        except ValueError as error:
            raise InvalidRequest(f"frontend_id: {error}", "frontend_id") from None
    if advisory.ttl_ms is not None and not 1 <= advisory.ttl_ms <= TTL_MAX_MS:
        raise InvalidRequest(f"ttl_ms must be 1 to {TTL_MAX_MS}", param="ttl_ms")
    arrival = advisory.expected_arrival
    if arrival is None:
        return
    if math.isnan(arrival) or not 0 <= arrival <= EXPECTED_ARRIVAL_MAX_S:
        raise InvalidRequest(
            f"expected_arrival must be 0 to {EXPECTED_ARRIVAL_MAX_S:g} seconds from now",
            param="expected_arrival",
        )


def _texts(advisory: Advisory) -> Iterator[tuple[str, str, int]]:
    """What has a length, by the field's name, with the longest that is kept."""
    yield "model_id", advisory.model_id or "", NAME_CHARS_MAX
    yield "agent", advisory.agent, NAME_CHARS_MAX
    yield "workflow_id", advisory.workflow_id, NAME_CHARS_MAX
    yield "request_id", advisory.request_id, NAME_CHARS_MAX
    yield "tenant", advisory.tenant, TENANT_TOKEN_CHARS_MAX
    yield "place", advisory.place, NAME_CHARS_MAX
    yield "frontend_id", advisory.frontend_id or "", NAME_CHARS_MAX
    if (adapter := advisory.adapter) is None:
        return
    if len(adapter.ranks) > RANKS_MAX:
        raise InvalidRequest(f"adapter must have at most {RANKS_MAX} targets", "adapter")
    for text in (adapter.adapter_hash, adapter.name, *adapter.ranks):
        yield "adapter", text, NAME_CHARS_MAX
