"""Asking all hosts for a session's KV, where its location is unknown: Redis is away, and the
scheduler does not know the session, or has just started.

What is asked is small, a few blocks spread over the sequence, and hosts that have none of them do
not answer.
Every host receives every question, so each knows how many are asked in the whole deployment, and
asks nothing while that is too much: together they keep to a limit without a central counter.
"""

from collections.abc import Iterable
from heapq import nlargest

from services.kvstore.core.base.store_limits import SAVED_NS
from services.kvstore.core.loading.peers import ASKED_MAX
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.line import Line

QUESTIONS_PER_S = 200  # of all hosts: what answering them costs each of them
SAMPLE_MAX = 8  # blocks that are asked for


class Finding:
    """Args:
    host_id: our own, whose answers are not needed.
    """

    def __init__(self, host_id: HostId) -> None:
        self._host_id = host_id
        self._questions = Line(QUESTIONS_PER_S, SAVED_NS)

    def may_ask(self, now_ns: int) -> bool:
        """Whether the deployment asks little enough."""
        return not self._questions.busy_ns(now_ns)

    def on_question(self, now_ns: int) -> None:
        """A host asked, perhaps this one."""
        self._questions.send(1, now_ns)

    def is_enough(self, host_id: HostId, num: int, num_asked: int) -> bool:
        """Whether a host with `num` of the sample has all there is: its last block may be new."""
        return host_id != self._host_id and num >= num_asked - 1

    def worth_asking(self, answers: Iterable[tuple[HostId, int]]) -> list[HostId]:
        """Hosts to ask for all, of those that answered with how much of the sample they have."""
        more = {host_id: num for host_id, num in answers if host_id != self._host_id and num > 0}
        return nlargest(ASKED_MAX, more, key=lambda host_id: more[host_id])


def sample_of(keys: list[BlockKey]) -> list[BlockKey]:
    """Some of a sequence's blocks, its first and its last among them, evenly spread."""
    num = min(len(keys), SAMPLE_MAX)
    return [keys[i * (len(keys) - 1) // max(num - 1, 1)] for i in range(num)]
