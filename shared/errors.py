"""Errors that cross service borders, each telling whose fault it was.

A peer's fault is rejected and counted and the service goes on; lack of capacity is an expected
answer; a broken invariant is an ``assert`` and ends the process.
"""

import os
import ssl


class SymphonyError(Exception):
    """Base of every error with a meaning outside the service that raised it.

    Attributes:
        code: stable machine-readable word (goes into an OpenAI error's ``code``).
        http_status: status an HTTP edge answers with.
    """

    code = "internal_error"
    http_status = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(SymphonyError):
    """The caller's fault: a value that cannot be served. `param` names it."""

    code = "invalid_request"
    http_status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class NotFound(InvalidRequest):
    """The named model, session, or advisory does not exist."""

    code = "not_found"
    http_status = 404


class WrongTenant(InvalidRequest):
    """A request names another tenant than the one whose credentials it came with."""

    code = "wrong_tenant"
    http_status = 403

    def __init__(self, tenant: str) -> None:
        super().__init__(f"tenant: these are the credentials of {tenant!r}", "tenant")


class NoCapacity(SymphonyError):
    """Nothing can serve this now; trying again later may work."""

    code = "no_capacity"
    http_status = 503

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TenantQuota(NoCapacity):
    """The tenant has as much of something as it may; others are served."""

    code = "tenant_quota"
    http_status = 429


class HintsThrottled(NoCapacity):
    """Too many of a sender's advisories were unused; turns are served as ever."""

    code = "hints_throttled"
    http_status = 429


class PeerUnavailable(NoCapacity):
    """A service did not answer in time, or its subject has no subscriber."""

    code = "peer_unavailable"


class NobodyListens(PeerUnavailable):
    """The bus itself says that the subject has no subscriber."""


class MalformedMessage(InvalidRequest):
    """A message from the wire that does not fit its declared type."""

    code = "malformed_message"


class ConfigError(SymphonyError):
    """A wrong setting; names the variable and the value. Ends the start with one line."""

    code = "config"


def reason(error: BaseException) -> str:
    """Why a connection failed, in the operating system's words where it has some.

    >>> reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"))
    'Connection refused'
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):  # whose number is none of the system's
            return getattr(cause, "verify_message", "") or cause.reason or str(cause)
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    text = " ".join(str(error).split())
    return text or ("no answer" if isinstance(error, TimeoutError) else type(error).__name__)
