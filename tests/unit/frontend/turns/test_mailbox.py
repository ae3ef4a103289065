"""What waits for a request's reader."""

import asyncio
from dataclasses import dataclass, field

import pytest

from services.frontend.core.turns.turns import Deliver
from services.frontend.turns.hub import UNREAD_MAX, ClientGone, Mailbox
from shared.ids import TurnId
from shared.wire.messages import TokenLogprobs
from tests.tables import largest_table


@dataclass
class FakeReader:
    is_behind: bool
    reasons: list[str] = field(default_factory=list)

    def hang_up(self, reason: str) -> None:
        self.reasons.append(reason)


def news(num: int, num_top: int | None = None) -> Deliver:
    top = [(token, -1.0) for token in range(num_top or 0)]
    entry = TokenLogprobs(token=1, logprob=-1.0, top=top)
    return Deliver(TurnId("t"), [1] * num, logprobs=None if num_top is None else [entry] * num)


@pytest.mark.parametrize("num_top", [None, 20])
def test_a_reader_that_leaves_too_much_unread_is_hung_up_on(num_top: int | None) -> None:
    mailbox, reader = Mailbox(), FakeReader(is_behind=True)
    mailbox.reader = reader
    num_fit = UNREAD_MAX // (1 if num_top is None else 22)
    for _ in range(num_fit):
        mailbox.put(0, news(1, num_top))
    assert not reader.reasons
    for _ in range(100):
        mailbox.put(0, news(1, num_top))
    assert reader.reasons == ["unread"]
    assert not largest_table(mailbox)
    with pytest.raises(ClientGone):
        asyncio.run(mailbox.take())


def test_who_reads_is_not_blamed_for_our_delay() -> None:
    mailbox, reader = Mailbox(), FakeReader(is_behind=False)
    mailbox.reader = reader
    for _ in range(3):
        mailbox.put(0, news(UNREAD_MAX))
    assert len(asyncio.run(mailbox.take())) == 3
    reader.is_behind = True
    mailbox.put(0, news(UNREAD_MAX))  # what was taken does not count any more
    assert not reader.reasons
