"""What can go wrong, by whose fault it is.

Nothing of this is raised by announcing: an `Announcer` counts it. It is for those who ask a
deployment something and want the answer.
"""


class SymphonyError(Exception):
    """Base of all of them.

    Attributes:
        message: what is wrong, in the server's words if it answered.
        code: the server's name for it, such as ``advisory_not_found``; empty if it gave none.
        param: the field it is about, if any.
        status: of HTTP, or None if no answer came.
        retry_after_s: when to try again, if the server said so.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        param: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.status = status
        self.retry_after_s = retry_after_s


class InvalidRequest(SymphonyError):
    """The request is wrong, and will be whenever it is sent again."""


class Unauthorized(SymphonyError):
    """No key, a wrong one, or one that does not open this."""


class NotFound(SymphonyError):
    """There is no such session or advisory."""


class Throttled(SymphonyError):
    """Too many: of advisories that came to nothing, or of what the tenant may have."""


class Unavailable(SymphonyError):
    """The deployment cannot do it now, or failed at it."""


class Unreachable(Unavailable):
    """No answer came: no server listens, the connection broke, or it took too long."""


class BadAnswer(SymphonyError):
    """What answered is no Symphony, or one that this client does not understand."""


class Unsupported(SymphonyError):
    """This transport cannot carry this question."""


KINDS: dict[int, type[SymphonyError]] = {
    401: Unauthorized, 403: Unauthorized, 404: NotFound, 408: Unavailable, 429: Throttled,
}  # fmt: skip


def of_status(status: int) -> type[SymphonyError]:
    """Whose fault a status is.

    >>> of_status(429).__name__, of_status(413).__name__, of_status(503).__name__
    ('Throttled', 'InvalidRequest', 'Unavailable')
    """
    if status in KINDS:
        return KINDS[status]
    if 400 <= status < 500:
        return InvalidRequest
    return Unavailable if status >= 500 else BadAnswer
