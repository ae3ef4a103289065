"""Listeners on NATS to all subjects of an account, which know what may arrive there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from loadtest.fuzz.report import Report
from loadtest.fuzz.tenancy.victim import SECRET

MARK = "left-by-the-thief"  # in all that a thief publishes
PROBED = "probed"  # in the names of inboxes where nothing but refusals may arrive
OWN_ANSWERS = (b'"object":"text_completion"', MARK.encode())
AUDIT = "$JS.EVENT.ADVISORY."  # NATS sends an account what it asked of JetStream
ENDS = (b"", b"[DONE]")
SHOWN_BYTES = 200


class Eavesdropper:
    """A thief's own connection: it gets everything of its account, and publishes what it should
    not. Only what the thief sent, and what it was answered, may arrive there.

    Args:
        bus: whose inboxes, as those of the thief's other connections, are named after it.
    """

    def __init__(self, bus: Client, thief: str, victim: str, report: Report) -> None:
        self._bus = bus
        self._victim = f'"tenant":"{victim}"'.encode()
        self._report = report
        self._inbox = f"_INBOX.{thief}."
        self._account = f'"acc":"tenant-{thief}"'.encode()
        self._num_published = 0

    async def listen(self) -> None:
        """Begin."""
        await self._bus.subscribe(">", cb=self._hear)
        await self._bus.flush()

    async def publish(self, subject: str, body: bytes, reply: str = "") -> None:
        """Publish; what comes back without `reply` is judged when it comes."""
        self._num_published += 1
        probed = f"{self._inbox}{PROBED}.{self._num_published}.{subject}"
        await self._bus.publish(subject, body, reply=reply or probed)

    @asynccontextmanager
    async def listening(self, subject: str, queue: str) -> AsyncIterator[None]:
        """Listen to one more subject inside this block."""
        subscription = await self._bus.subscribe(subject, queue=queue, cb=self._hear)
        await self._bus.flush()
        try:
            yield
        finally:
            await subscription.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        subject, data = message.subject, message.data
        self._report.count("heard_by_thief")
        answered, _, probed = subject.partition(f".{PROBED}.")
        if probed:  # NATS itself informs each account about itself
            is_own = not data or b'"error"' in data or ".$SYS." in probed
        elif subject.startswith(AUDIT):
            is_own = self._account in data
        elif answered.startswith(self._inbox):
            is_own = self._victim not in data
        else:
            is_own = (
                (message.reply or "").startswith(self._inbox)
                or data in ENDS
                or any(answer in data for answer in OWN_ANSWERS)
            )
        if not is_own or SECRET.encode() in data:
            self._report.count("successes")
            self._report.expect(False, f"the thief got {_shown(message)}")


async def watch(bus: Client, patterns: tuple[str, ...], own: str, report: Report) -> None:
    """Listen in another account than the thief's, and report what it left there.

    Args:
        own: prefix of subjects on which it may arrive there.
    """

    async def on_message(message: Msg) -> None:
        report.count("heard_beside_thief")
        if MARK.encode() in message.data and not (own and message.subject.startswith(own)):
            report.count("successes")
            report.expect(False, f"of the thief's there arrived {_shown(message)}")

    for pattern in patterns:
        await bus.subscribe(pattern, cb=on_message)
    await bus.flush()


def _shown(message: Msg) -> str:
    return f"{message.subject}: {message.data[:SHOWN_BYTES]!r}"
