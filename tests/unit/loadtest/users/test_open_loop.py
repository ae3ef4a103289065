"""Arrivals that do not wait, what is counted of them, and the search of the highest rate."""

import asyncio
from itertools import pairwise
from statistics import mean

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.users.life import Said
from loadtest.users.measures import Turn
from loadtest.users.open_loop import Offer, OpenLoop, Search, Target, arrivals, verdict

TARGET = Target(ttft_ms=100, tpot_ms=20)
ANSWER = (
    b'data: {"choices": [{"delta": {"content": "so"}, "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}\n\n'
    b"data: [DONE]\n\n"
)


def test_arrivals_are_poisson_and_heard_of_in_order() -> None:
    offer = Offer(rate=20.0, seconds=200.0, hints=0.3, seed=4)
    found = arrivals(offer)
    assert len(found) == pytest.approx(4000, rel=0.1)
    assert mean(each.lead_s is not None for each in found) == pytest.approx(0.3, abs=0.05)
    heard = [each.due_s - (each.lead_s or 0.0) for each in found]
    assert heard == sorted(heard) and heard[0] >= 0
    due = sorted(each.due_s for each in found)
    gaps = [after - before for before, after in pairwise(due)]
    assert mean(gap > 0.05 for gap in gaps) == pytest.approx(0.368, abs=0.05)
    assert arrivals(offer) == found


def test_a_turn_is_good_if_both_times_are() -> None:
    turns = [
        Turn(at_s=0, kind="first", ttft_ms=100, tpot_ms=20),
        Turn(at_s=0, kind="first", ttft_ms=90),  # of one token
        Turn(at_s=0, kind="first", ttft_ms=101, tpot_ms=1),
        Turn(at_s=0, kind="first", ttft_ms=1, tpot_ms=21),
        Turn(at_s=0, kind="first", trouble="503"),
    ]
    found = verdict(turns, Offer(rate=1.0, seconds=10.0, hints=0.0), TARGET)
    assert found["goodput_turns_per_s"] == 0.2 and found["bad_share"] == 0.6
    assert (found["turns"], found["failures"]) == (5, 1)
    assert verdict([], Offer(rate=1.0, seconds=10.0, hints=0.0), TARGET)["bad_share"] == 0.0


@given(st.floats(0.2, 500.0), st.floats(0.5, 8.0))
def test_the_search_ends_near_the_highest_good_rate(limit: float, first: float) -> None:
    search, num = Search(first), 0
    while (rate := search.rate) is not None:
        search.on_result(is_good=rate <= limit)
        num += 1
    assert num <= 24
    assert limit * 0.94 <= search.best <= limit


def test_the_search_gives_up_where_nothing_is_good() -> None:
    search = Search(4.0)
    while search.rate is not None:
        search.on_result(is_good=False)
    assert search.best == 0.0


async def _run(
    status: bytes, content: bytes, delay_s: float = 0.0
) -> tuple[list[Turn], list[bytes]]:
    """Against a server that says this to every request; and what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked.append(head.split(b" ")[1] + b" " + await reader.readexactly(length))
        await asyncio.sleep(delay_s)
        if b"/v1/advisories" in head:
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}")
        else:
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(content)))
            writer.write(content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    offer = Offer(rate=100.0, seconds=0.5, hints=0.5, faster=100.0, turns_max=3)
    loop = OpenLoop(
        f"http://127.0.0.1:{port}", "m", offer, lambda: Said("word", 1, 4), "run", api_key="key"
    )
    async with server:
        turns = await loop.run()
    return turns, asked


def test_sessions_are_gone_on_with_and_hinted() -> None:
    turns, asked = asyncio.run(_run(b"200 OK", ANSWER))
    bodies = [orjson.loads(each.partition(b" ")[2]) for each in asked if b"/v1/chat/" in each]
    assert len(bodies) == len(turns) == len(arrivals(Offer(rate=100, seconds=0.5, hints=0.5)))
    assert {turn.kind for turn in turns} == {"first", "hinted", "unhinted"}
    assert not any(turn.trouble for turn in turns)
    lengths = {len(body["messages"]) for body in bodies}
    assert lengths == {1, 3, 5}  # three turns of a session, then another one
    going_on = next(body for body in bodies if len(body["messages"]) == 3)
    assert [each["role"] for each in going_on["messages"]] == ["user", "assistant", "user"]
    assert going_on["messages"][1]["content"] == "so"
    hints = [orjson.loads(each.partition(b" ")[2]) for each in asked if b"/advisories" in each]
    assert hints and all(hint["expected_arrival"] >= 0 for hint in hints)


def test_nobody_waits_for_a_slow_server_and_its_slowness_counts() -> None:
    turns, asked = asyncio.run(_run(b"200 OK", ANSWER, delay_s=0.6))
    assert all(turn.kind == "first" for turn in turns)  # no session had its answer yet
    assert all(turn.ttft_ms >= 600 for turn in turns)
    assert len(turns) == sum(b"/v1/chat/" in each for each in asked)


def test_a_refusal_is_a_failure_with_its_reason() -> None:
    said = b'{"error": {"code": "overloaded", "message": "later"}}'
    turns, _ = asyncio.run(_run(b"503 Service Unavailable", said))
    assert {turn.trouble for turn in turns} == {"503 overloaded: later"}
    turns, _ = asyncio.run(_run(b"200 OK", ANSWER[:30]))
    assert {turn.trouble for turn in turns} == {"the stream ended early"}
