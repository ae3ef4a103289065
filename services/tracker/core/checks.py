"""What an advisory may say."""

import math

from shared.errors import InvalidRequest
from shared.messages import Advisory

SESSION_ID_CHARS_MAX = 256
PRIORITY_MAX = 9
EXPECTED_ARRIVAL_MAX_S = 86_400.0
TTL_MAX_MS = 86_400_000
NAME_CHARS_MAX = 256


def check_advisory(advisory: Advisory) -> None:
    """Refuse what cannot be tracked.

    Raises:
        InvalidRequest: names the field at fault.
    """
    if not 1 <= len(advisory.session_id) <= SESSION_ID_CHARS_MAX:
        raise InvalidRequest(
            f"session_id must have 1 to {SESSION_ID_CHARS_MAX} characters", param="session_id"
        )
    if not 0 <= advisory.priority <= PRIORITY_MAX:
        raise InvalidRequest(f"priority must be 0 to {PRIORITY_MAX}", param="priority")
    for name, value in (("agent", advisory.agent), ("workflow_id", advisory.workflow_id)):
        if len(value) > NAME_CHARS_MAX:
            raise InvalidRequest(f"{name} must have at most {NAME_CHARS_MAX} characters", name)
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
