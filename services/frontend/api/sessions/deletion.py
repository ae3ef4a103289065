"""Deleting a session: whatever has something of it is asked to delete that, in an order that leaves
nothing that could bring it back.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TypeVar

from services.frontend.app import App
from shared.errors import NoCapacity, SymphonyError
from shared.wire.messages import AdvisoryKey, KvDelete, SessionForget
from shared.wire.subjects import ADVISORY_INVALIDATE, SESSION_DELETE, SESSION_FORGET, Subject

Req = TypeVar("Req")
Rep = TypeVar("Rep")

ROUND_S = 1.5  # a message may be lost: it is sent again
UNKNOWN_S = 0.2  # for the answers of processes that were not seen yet
NUM_ROUNDS = 4  # together longer than a worker that is gone still seems to live
TRACKER_TIMEOUT_S = 1.0


class DeletionUnfinished(NoCapacity):
    """A process that may have KV of the session did not confirm that it is gone. The record is
    deleted; ask again.
    """

    code = "deletion_unfinished"


async def delete_everywhere(app: App, key: AdvisoryKey) -> tuple[bool, int]:
    """Forget a session: its record first, so that no turn begins with it; then the workers, which
    report new blocks to the kvstores; then the kvstores.

    Returns:
        Whether it was known, and how many blocks the kvstores had.

    Raises:
        StoreAway: nothing was deleted.
        DeletionUnfinished: not everything was.
    """
    tombstone = await app.sessions.forget(key.tenant, key.session_id)
    with suppress(SymphonyError):  # one that is not invalidated expires
        await app.hints.ask(ADVISORY_INVALIDATE, key, timeout_s=TRACKER_TIMEOUT_S, grace_s=0.0)
    keys = tombstone.block_keys
    forget = SessionForget(session_id=key.session_id, tenant=key.tenant, keys=keys)
    forgotten = await _ask_all(
        app, SESSION_FORGET, forget, lambda reply: reply.worker_id, lambda: app.models.holders()[0]
    )
    delete = KvDelete(session_id=key.session_id, tenant=key.tenant, keys=keys)
    deleted = await _ask_all(
        app, SESSION_DELETE, delete, lambda reply: reply.host_id, lambda: app.models.holders()[1]
    )
    await app.sessions.settle(tombstone)
    # Its first turn may run: then there is no record yet.
    was_known = tombstone.found or any(reply.was_known for reply in forgotten)
    return was_known, sum(reply.num_blocks for reply in deleted)


async def _ask_all(
    app: App,
    subject: Subject[Req, Rep],
    message: Req,
    name_of: Callable[[Rep], str],
    wanted: Callable[[], AbstractSet[str]],
) -> list[Rep]:
    """Ask until all that are wanted have answered; one that goes meanwhile is wanted no more.

    Raises:
        DeletionUnfinished: one did not.
    """
    replies: list[Rep] = []

    def missing(more: list[Rep]) -> AbstractSet[str]:
        return wanted() - {name_of(reply) for reply in [*replies, *more]}

    for _ in range(NUM_ROUNDS):
        replies += await app.bus.gather(
            subject,
            message,
            timeout_s=ROUND_S if wanted() else UNKNOWN_S,
            until=lambda more: bool(wanted()) and not missing(more),
        )
        if not missing([]):
            return replies
    raise DeletionUnfinished(
        f"{', '.join(sorted(missing([])))} did not say that the session's KV is gone; delete again"
    )
