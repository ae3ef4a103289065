"""A NATS client that limits the rate at which it receives messages.

NATS does not limit publishers and delivers everything to the subscribers. Messages that a paced
client does not receive yet wait in the server, in this connection's buffer; when that is full, the
server closes this connection and no other.
"""

import asyncio
from dataclasses import dataclass

from nats.aio.client import Client

SLEEP_S_MIN = 0.01  # a shorter debt is slept off with the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Limits per second; a burst after a second of silence may be twice as large."""

    messages_per_s: float
    bytes_per_s: float

    def cost_s(self, num_bytes: int) -> float:
        """The time that a message of this size uses up.

        >>> Pace(messages_per_s=100, bytes_per_s=1000).cost_s(500)
        0.5
        """
        return max(1 / self.messages_per_s, num_bytes / self.bytes_per_s)


class PacedClient(Client):
    """Delivers one message at a time, and yields to other tasks between two."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace
        self._is_due_at_s = 0.0

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        self._is_due_at_s = max(self._is_due_at_s, now_s - 1.0) + self._pace.cost_s(len(data))
        debt_s = self._is_due_at_s - now_s
        await asyncio.sleep(debt_s if debt_s >= SLEEP_S_MIN else 0)
        await super()._process_msg(sid, subject, reply, data, headers)
