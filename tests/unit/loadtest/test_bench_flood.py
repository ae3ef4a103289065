"""`bench flood`: what it makes of what was seen."""

import asyncio

import orjson
import pytest

from loadtest.bench import flood
from loadtest.bench.flood import Sent, summary
from loadtest.bench.flood.sender import Http, Tally, _Connection
from shared.errors import InvalidRequest


def told(num_throttled: int, first_s: float | None) -> bytes:
    return orjson.dumps(
        {
            "num_due": 100,
            "num_sent": 90,
            "answers": {"202": 10, "429": num_throttled},
            "first_throttled_s": first_s,
        }
    )


def test_rounds_add_up_to_one_line() -> None:
    sent = Sent()
    sent.add(told(0, None))
    sent.add(told(5, 0.4))
    sent.add(told(7, 0.0))
    found = summary([0.1, 0.2, 0.3], [0.21, 0.22, 0.5], sent, 3.0)
    assert (found["ttft_ms_before"], found["ttft_ms_during"]) == (200.0, 220.0)
    assert (found["throttled"], found["ttft_ratio"]) == (12, 1.1)
    assert (found["due_per_s"], found["sent_per_s"], found["first_throttled_s"]) == (100, 90, 0.4)


def test_answers_are_counted_wherever_their_bytes_are_cut() -> None:
    tally = Tally()
    connection = _Connection(tally)
    answers = b"HTTP/1.1 202 Accepted\r\n\r\n{}HTTP/1.1 429 Too Many\r\nx: y\r\n\r\n{}" * 3
    for cut in range(len(answers)):
        tally.answers.clear()
        connection.data_received(answers[:cut])
        connection.data_received(answers[cut:])
        assert tally.answers == {"202": 3, "429": 3}
        connection.data_received(b"x" * 12)
    assert tally.first_throttled_s is not None


def test_what_no_connection_takes_is_not_sent() -> None:
    async def scenario() -> None:
        connections = [_Connection(Tally()) for _ in range(2)]
        for connection in connections:
            connection.pause_writing()
        assert not Http(1, "key", connections).send("s")

    asyncio.run(scenario())


@pytest.mark.parametrize("options", [["--rate", "0"], ["--rounds", "0"], ["--connections", "0"]])
def test_wrong_options_are_refused(options: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=options[0]):
        flood.run(options)
