"""Errors as the answer to a request: the caller gets the one that was raised."""

from typing import Any

import orjson

from shared.errors import InvalidRequest, NoCapacity, NotFound, SymphonyError, TenantQuota


def error_to_wire(error: SymphonyError) -> dict[str, Any]:
    """What the caller gets, field by field."""
    return {
        "code": error.code,
        "message": error.message,
        "http_status": error.http_status,
        "param": getattr(error, "param", None),
        "retry_after_s": getattr(error, "retry_after_s", None),
    }


def error_from_wire(data: bytes) -> SymphonyError:
    """The error that the other side answered with."""
    fields = orjson.loads(data)
    status, message = fields["http_status"], fields["message"]
    error: SymphonyError
    if status == 404:
        error = NotFound(message, fields["param"], fields["code"])
    elif status == 429:
        error = TenantQuota(message, fields["retry_after_s"] or 1.0)
    elif status < 500:
        error = InvalidRequest(message, fields["param"], fields["code"])
    elif status == 503:
        error = NoCapacity(message, fields["retry_after_s"] or 1.0)
    else:
        error = SymphonyError(message)
    error.code = fields["code"]
    error.http_status = status
    return error
