"""The end of a session, sent to all services that have something of it. The kvstores come last, see
`kv.KvDelete`.
"""

from dataclasses import dataclass

from shared.ids import DEFAULT_TENANT, SessionId, TenantId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForget:
    """A session was deleted. Workers drop the blocks that it made and those of `keys` (packed hex,
    of its record), and let what it runs leave none behind; frontends answer workers that ask later.
    """

    session_id: SessionId
    tenant: TenantId = DEFAULT_TENANT
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForgotten:
    """This worker has no block of the session any more, and none is on its way to a kvstore.

    Attributes:
        was_known: it had some, or a turn of it, which goes on to its end.
    """

    worker_id: WorkerId
    was_known: bool = False
