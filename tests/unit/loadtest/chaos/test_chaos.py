"""What `bench chaos` does to a deployment of real processes, and how it tells what that cost."""

import asyncio
from collections.abc import Awaitable, Callable

import orjson
import pytest
import torch

from loadtest.bench import chaos
from loadtest.chaos.crowd import Crowd, make_bodies
from loadtest.chaos.judge import Fault, Toll, judge, met_by, take_toll
from loadtest.chaos.processes import Wanted, plan
from loadtest.chaos.sse import Stream, stream_chat
from loadtest.chaos.ties import ROUNDING, TEMPERATURE, TOP_K, may_choose
from loadtest.fuzz.report import Report
from services.worker.device.sampling.sampler import sample, uniform
from shared.errors import InvalidRequest
from shared.wire.messages import SamplingParams
from tests.unit.worker.device.sampling.test_sampler import row

HOUSE = ("nats", "scheduler", "scheduler-spare-0", "frontend", "worker-0")


def wanted(
    kill: tuple[str, ...] = (), stop: tuple[str, ...] = (), stops_s: tuple[float, ...] = (5.0, 1.0)
) -> Wanted:
    return Wanted(
        end=(), kill=kill, stop=stop, stops_s=stops_s, rounds=1, num_workers=1, num_spares=1
    )


def test_a_round_does_every_fault_once_the_frontend_last() -> None:
    faults = [(fault.name, fault.stop_s) for fault in plan(wanted(("all",), ("all",)), HOUSE)]
    order = ("nats", "scheduler", "scheduler-spare-0", "worker-0", "frontend")
    assert faults == [(name, stop_s) for stop_s in (0.0, 1.0, 5.0) for name in order]


def test_a_round_does_what_is_named_and_refuses_other_names() -> None:
    faults = plan(wanted(("nats",), ("worker-0", "nats"), (2.0,)), HOUSE)
    assert [fault.what for fault in faults] == [
        "nats killed", "nats stopped 2 s", "worker-0 stopped 2 s",
    ]  # fmt: skip
    with pytest.raises(InvalidRequest, match=r"worker-7.*worker-0"):
        plan(wanted(("worker-7",)), HOUSE)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "give --sim"),
        (["--sim", "--seeds", "0"], "--seeds"),
        (["--sim", "--seed", "5"], "--first"),
    ],
)
def test_a_command_that_asks_for_nothing_is_refused(argv: list[str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        chaos.run(argv)


def test_what_a_process_may_cost() -> None:
    limits = {
        (name, stop_s): Fault(name=name, stop_s=stop_s).gap_max_s
        for name in ("worker-1", "scheduler-spare-0", "kvstore")
        for stop_s in (0.0, 5.0)
    }
    assert list(limits.values()) == [3.0, 3.0, 1.0, 1.0, 1.5, 6.5]


def stream(
    tokens: list[int], pieces_at: list[float], *, sent_at: float = 0.0, trouble: str = ""
) -> Stream:
    return Stream(0, 0, sent_at, pieces_at[-1], pieces_at=pieces_at, tokens=tokens, trouble=trouble)


GOOD = [1, 2, 3]
REFUSED = Stream(0, 0, 10.5, 10.6, trouble="503", was_refused=True)
TIE = stream([1, 9, 9], [11.0, 11.1, 11.2], sent_at=10.0)
TIE.is_tie = True


def toll_of(*ended: Stream) -> Toll:
    """Of a fault from 10 to 20 s."""
    return take_toll(met_by(ended, 10.0, 20.0), lambda _: GOOD, 10.0, 20.0)


def test_a_toll_counts_who_was_there() -> None:
    toll = toll_of(
        stream(GOOD, [1.0, 2.0, 9.0]),  # over before
        stream([], [21.0], sent_at=20.5),  # and after
        stream(GOOD, [8.0, 12.5, 13.0]),
        stream(GOOD, [12.0, 12.1, 30.0], sent_at=11.0),
        stream([1, 2], [12.0, 19.0], sent_at=10.0, trouble="it ended"),  # a good beginning
        stream([1, 9], [12.0, 13.0], sent_at=10.0, trouble="it ended"),
        stream([1, 2], [12.0, 13.0], sent_at=10.0),  # a token is missing
        stream([1, 2, 3, 3], [12.0, 13.0], sent_at=10.0),
        TIE,
        REFUSED,
    )
    counts = (toll.num_exact, toll.num_ties, toll.num_wrong, toll.num_broken, toll.num_refused)
    assert counts == (2, 1, 3, 2, 1)
    assert toll.gap_s == 17.9 and toll.first_piece_s == 2.0
    assert toll.troubles == ("503", "it ended")


def test_gaps_before_and_after_a_fault_are_not_its_own() -> None:
    assert toll_of(stream(GOOD, [1.0, 9.0, 9.5, 21.0, 40.0])).gap_s == 11.5


KILLED, STOPPED = Fault(name="frontend", stop_s=0.0), Fault(name="nats", stop_s=1.0)


@pytest.mark.parametrize(
    ("fault", "met", "violation"),
    [
        (STOPPED, [stream(GOOD, [9.0, 11.4])], ""),
        (STOPPED, [stream(GOOD, [9.0, 11.6])], "waited 2.6 s"),
        (STOPPED, [], "no stream"),
        (STOPPED, [stream(GOOD, [11.0]), stream([4, 2, 3], [11.0])], "not as expected"),
        (STOPPED, [stream(GOOD, [11.0]), TIE], ""),
        (STOPPED, [stream(GOOD, [11.0]), stream([1], [11.0], trouble="x")], "streams broke"),
        (STOPPED, [stream(GOOD, [11.0]), REFUSED], "refused"),
        (KILLED, [stream(GOOD, [11.0]), REFUSED, stream([1], [11.0], trouble="x")], ""),
        (KILLED, [stream(GOOD, [11.0]), stream([4], [11.0], trouble="x")], "not as expected"),
    ],
)
def test_what_is_a_violation(fault: Fault, met: list[Stream], violation: str) -> None:
    report = Report()
    judge(report, fault, toll_of(*met))
    assert len(report.violations) == bool(violation)
    assert violation in "".join(report.violations)


def test_ties_choose_as_the_sampler_does() -> None:
    generator, num_close = torch.Generator().manual_seed(3), 0
    for seed in range(100):
        logits = torch.randn(20, generator=generator)
        rows = [row(temperature=TEMPERATURE, top_k=TOP_K, seed=seed)]
        (chosen,) = sample(logits[None], rows, frozenset(), {})
        scores = dict(enumerate(logits.log_softmax(-1).tolist()))
        may = may_choose(scores, seed, 0)
        assert chosen is not None and chosen.token in may
        num_close += len(may) > 1
    assert num_close <= 1


def test_a_draw_between_two_tokens_may_be_either() -> None:
    draw = uniform(7, 4)
    near = {0: 0.8 * _log_odds(draw), 1: 0.0, **dict.fromkeys(range(2, 9), -90.0)}
    assert may_choose(near, 7, 4) == {0, 1}
    far = near | {0: near[0] + 4 * ROUNDING}
    assert may_choose(far, 7, 4) == {0}


def _log_odds(share: float) -> float:
    return float(torch.tensor(share / (1 - share), dtype=torch.float64).log())


Answer = Callable[[str, bytes], list[bytes]]


async def serve(answer: Answer, ask: Callable[[int], Awaitable[None]]) -> None:
    """A server that answers each request with these pieces, a chunk each, while `ask` runs."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        status, *pieces = answer(head.split()[1], await reader.readexactly(length))
        writer.write(b"HTTP/1.1 %b\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if pieces[-1:] != [b"CUT"]:
            writer.write(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with server:
        await ask(server.sockets[0].getsockname()[1])


def event(*tokens: int, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": ""}, "token_ids": list(tokens)}
    return b"data: %b\n\n" % orjson.dumps({"choices": [choice], "usage": None, **more})


USAGE = {"prompt_tokens_details": {"cached_tokens": 64}}
END = (b'data: {"choices":[],"usage":%b}\n\n' % orjson.dumps(USAGE), b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("pieces", "tokens", "trouble", "is_refused"),
    [
        ([event(1, prompt_token_ids=[7]), event(2, 3), *END], [1, 2, 3], "", False),
        ([event(1)[:9], event(1)[9:] + event(2)[:-1], b"\n", *END], [1, 2], "", False),
        ([event(1), event(2)], [1, 2], "the connection ended", False),
        ([event(1), b"CUT"], [1], "the connection ended", False),
        ([event(1), b'data: {"error":{"code":"gone"}}\n\n'], [1], "gone", False),
        ([], [], "the connection ended", False),
    ],
)
def test_a_stream_is_read_to_its_end(
    pieces: list[bytes], tokens: list[int], trouble: str, is_refused: bool
) -> None:
    found = Stream(0, 0, 0.0)

    async def ask(port: int) -> None:
        await stream_chat(port, b"{}", found)

    asyncio.run(serve(lambda *_: [b"200 OK", *pieces], ask))
    assert found.tokens == tokens and found.was_refused == is_refused
    assert (trouble in found.trouble) if trouble else not found.trouble
    assert found.cached_tokens == (64 if pieces[-1:] == [END[1]] else 0)


def test_what_is_refused_says_why() -> None:
    found, unheard = Stream(0, 0, 0.0), Stream(0, 0, 0.0)

    async def ask(port: int) -> None:
        await stream_chat(port, b"{}", found)

    asyncio.run(serve(lambda *_: [b"503 Busy", b'{"error":"full"}'], ask))
    assert found.was_refused and found.trouble == '503 {"error":"full"}'
    asyncio.run(stream_chat(1, b"{}", unheard))
    assert unheard.was_refused and unheard.trouble == "Connection refused"


def test_bodies_are_the_seed_s() -> None:
    assert make_bodies(["m"], 2, 3) == make_bodies(["m"], 2, 3) != make_bodies(["m"], 2, 4)
    assert len({body for bodies in make_bodies(["m"], 2, 3) for body in bodies}) == 4


@pytest.mark.parametrize(("gap", "num_ties", "num_wrong"), [(0.0, 1, 0), (0.1, 0, 1)])
def test_the_crowd_asks_how_likely_another_token_was(
    gap: float, num_ties: int, num_wrong: int
) -> None:
    """The third answer differs from the first in its second token, between which the draw fell."""
    bodies = make_bodies(["m"], 1, 4)
    draw = uniform(orjson.loads(bodies[0][0])["seed"], 1)
    assert draw > 0.5  # so that the likelier token comes first
    between = TEMPERATURE * _log_odds(draw)
    top = {
        "token_id:5": between + gap,
        "token_id:8": 0.0,
        **{f"token_id:{n}": -90.0 for n in (1, 2)},
    }
    questions: list[list[int]] = []
    num_chats, fourth = 0, asyncio.Event()

    def answer(path: str, body: bytes) -> list[bytes]:
        nonlocal num_chats
        if path == "/v1/completions":
            questions.append(orjson.loads(body)["prompt"])
            logprobs = {"top_logprobs": [top]}
            return [b"200 OK", orjson.dumps({"choices": [{"logprobs": logprobs}]})]
        num_chats += 1
        if num_chats == 4:
            fourth.set()
        second = 8 if num_chats == 3 else 5
        return [b"200 OK", event(4, prompt_token_ids=[7, 7]), event(second), *END]

    async def ask(port: int) -> None:
        crowd = Crowd(port, bodies)
        await crowd.learn()
        async with crowd.streaming():
            await fourth.wait()
            toll = await crowd.toll_since(0.0)
        assert (toll.num_ties, toll.num_wrong) == (num_ties, num_wrong)

    asyncio.run(serve(answer, ask))
    assert questions == [[7, 7, 4]]


def test_sampling_of_the_crowd_is_what_ties_reckon_with() -> None:
    body = orjson.loads(make_bodies(["m"], 1, 3)[0][0])
    params = SamplingParams(max_tokens=1, temperature=body["temperature"], top_k=body["top_k"])
    assert (params.temperature, params.top_k) == (TEMPERATURE, TOP_K)
    assert not {"top_p", "min_p", "frequency_penalty", "logit_bias"} & set(body)
