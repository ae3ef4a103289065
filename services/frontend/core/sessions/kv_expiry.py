"""How long a turn's KV is kept after its last use: set by its request, its tenant, or each tier."""

from services.frontend.core.limits.quotas import TenantLimits
from shared.errors import InvalidRequest
from shared.wire.sessions import DEFAULT_EXPIRY_S

RELEASED_S = 60  # of a session that its client released


def kv_expiry_s(
    limits: TenantLimits, asked: int | None, *, retained_s: float = 0.0, is_released: bool = False
) -> int:
    """Seconds; 0: as configured for each tier.

    Args:
        limits: of the tenant.
        asked: by the request's own field.
        retained_s: for so long a hint wants it kept at least.
        is_released: a hint says that it is not needed any more.

    Raises:
        InvalidRequest: the field asks for more than the tenant may have.
    """
    usual = limits.kv_expiry_s
    most = max(limits.kv_expiry_s_max, usual) or DEFAULT_EXPIRY_S
    if asked is not None:
        if asked > most:
            raise InvalidRequest(
                f"kv_expiry_s: {asked} is more than the {most} seconds that this tenant may have",
                "kv_expiry_s",
            )
        return asked
    if is_released:
        return min(RELEASED_S, usual or most)
    retained = min(int(retained_s), most)
    return retained if retained > (usual or DEFAULT_EXPIRY_S) else usual
