"""Faults under streams on adapters: who runs on what, what workers count, who is struck when."""

import asyncio
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

import orjson
import pytest

from loadtest.bench import chaos
from loadtest.chaos import helpers
from loadtest.chaos.adapters import Wanted, offered
from loadtest.chaos.crowd import MIXED, SHORT, USUAL, Crowd, Lengths, make_bodies
from loadtest.chaos.helpers import (
    Aim,
    are_all_ready,
    helper_names,
    helpers_of,
    strike_in_pass,
    was_in_pass,
)
from loadtest.chaos.judge import Fault, judge
from loadtest.chaos.striking import Met
from loadtest.chaos.watch import Watch, free_ports
from loadtest.deployment import Deployment
from loadtest.fuzz.report import Report
from services.worker.device.assist.channel import Channel, ChannelShape, Outcome
from shared.errors import InvalidRequest, PeerUnavailable
from tests.unit.loadtest.chaos.test_chaos import END, GOOD, event, serve, stream, toll_of


def models_of(bodies: list[list[bytes]]) -> list[str]:
    return [orjson.loads(body)["model"] for of_client in bodies for body in of_client]


def test_streams_run_on_the_base_and_on_adapters_in_turn() -> None:
    bodies = make_bodies(["base", "a0", "a1"], 3, 1, MIXED)
    assert models_of(bodies) == ["base", "a0", "a1"] * MIXED.bodies
    without = make_bodies(["base"], 3, 1, MIXED)
    assert set(models_of(without)) == {"base"}
    for body, other in zip(bodies[0], without[0], strict=True):
        assert orjson.loads(body) | {"model": "base"} == orjson.loads(other)


@pytest.mark.parametrize("lengths", [USUAL, MIXED, SHORT])
def test_no_turn_is_longer_than_pools_have_room_for(lengths: Lengths) -> None:
    for bodies in make_bodies(["m"], 40, 3, lengths):
        for body in map(orjson.loads, bodies):
            chars = sum(len(message["content"]) for message in body["messages"])
            assert chars + body["max_tokens"] < lengths.turn_tokens


@pytest.mark.parametrize(
    ("answers", "why"),
    [({"m": 1, "a": 2, "b": 3}, ""), ({"m": 1, "a": 2, "b": 2}, "a and b"), ({"m": 1}, "a: 404")],
)
def test_adapters_that_change_nothing_show_nothing(answers: dict[str, int], why: str) -> None:
    def answer(_: str, body: bytes) -> list[bytes]:
        asked = orjson.loads(body)
        assert "session_id" not in asked
        token = answers.get(asked["model"])
        return [b"404 No", b"{}"] if token is None else [b"200 OK", event(5, token), *END]

    async def ask(port: int) -> None:
        await Crowd(port, make_bodies(["m"], 1, 4)).tell_apart(["m", "a", "b"])

    if not why:
        asyncio.run(serve(answer, ask))
    else:
        with pytest.raises(PeerUnavailable, match=why):
            asyncio.run(serve(answer, ask))


def told(begun_at: float, assisted: int, loads: int, awaited: str = "") -> str:
    """What a worker says."""
    start = 'symphony_adapter_first_token_seconds_count{model="m",start="assisted"}'
    load = 'symphony_adapter_load_seconds_count{model="m",source="files"}'
    labels = f'model="m",max_lora="4",running_lora_adapters="a9",waiting_lora_adapters="{awaited}"'
    return (
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {begun_at}\n"
        "# TYPE symphony_adapter_first_token_seconds histogram\n"
        f"{start} {assisted}\n{start.replace('count', 'sum')} 1\n"
        "# TYPE symphony_adapter_load_seconds histogram\n"
        f"{load} {loads}\n{load.replace('count', 'sum')} 1\n"
        f"# TYPE symphony_lora_requests_info gauge\nsymphony_lora_requests_info{{{labels}}} 1\n"
    )


def test_what_workers_count_is_added_up_over_their_deaths() -> None:
    watch = Watch([1, 2])
    watch.take(0, told(1.0, assisted=2, loads=3))
    watch.take(1, told(1.0, assisted=5, loads=0, awaited="a1,a2"))
    before = watch.counts
    assert (before.starts, before.loads) == (Counter(assisted=7), Counter(files=3))
    watch.take(0, told(1.0, assisted=4, loads=3))
    watch.take(1, told(9.0, assisted=6, loads=1, awaited="a1"))  # another process
    assert (watch.counts - before).as_dict() == {"starts": {"assisted": 8}, "loads": {"files": 1}}
    assert (watch.num_awaited(), watch.num_awaited(0), watch.num_awaited(1)) == (1, 0, 1)


def test_a_worker_that_is_gone_is_left_out() -> None:
    watch = Watch(free_ports(2))
    watch.take(1, told(1.0, assisted=1, loads=1, awaited="a1"))
    asyncio.run(watch.look())
    assert watch.num_awaited() == 0 and watch.counts.starts == Counter(assisted=1)


SHAPE = ChannelShape(rows_max=1, in_bytes=64, out_bytes=64)


@contextmanager
def helper_of(parent: int, channel: Channel) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that looks like a worker's helper, and waits."""
    numbers = parent, channel.file_number, *astuple(SHAPE)
    words = [helpers.MODULE.decode(), *map(str, numbers)]
    command = ["/bin/sh", "-c", "echo; read line", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[channel.file_number]
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its words can be read
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def channel() -> Channel:
    return Channel.create(SHAPE)


def test_helpers_are_told_by_their_worker(channel: Channel, tmp_path: Path) -> None:
    worker, log = os.getpid(), tmp_path / "logs" / "worker-3.log"
    deployment = Deployment(tmp_path)
    log.parent.mkdir()
    log.write_text("")
    with pytest.MonkeyPatch.context() as patch, helper_of(worker, channel) as process:
        patch.setattr(Deployment, "pids", lambda _: {"nats": 1, "worker-3": worker})
        found = helpers_of(worker)
        assert [each.pid for each in found] == [process.pid] and not helpers_of(process.pid)
        assert helper_names(deployment) == ["helper-3"]
        assert not are_all_ready(deployment)
        log.write_text(f'{{"message":"a helper of adapters is ready","pid":{process.pid},"r":1}}\n')
        assert are_all_ready(deployment)
        seen = found[0].channel()
        assert not seen.is_awake
        channel.is_awake = True
        assert seen.is_awake


@pytest.mark.parametrize("comes", [True, False])
def test_a_helper_or_its_worker_is_struck_while_one_waits_for_the_other(
    comes: bool, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "PASS_WITHIN_S", 0.01)
    if comes:
        channel.ask(1)
    with helper_of(1, channel) as helper, helper_of(1, channel) as worker:
        handles = [os.pidfd_open(each.pid) for each in (helper, worker)]
        assert strike_in_pass(handles[1], signal.SIGKILL, handles[0], channel)[1] == comes
        assert worker.wait() == -signal.SIGKILL and helper.poll() is None
        strike_in_pass(handles[0], signal.SIGKILL, handles[0], channel)
        assert helper.wait() == -signal.SIGKILL
        for handle in handles:
            os.close(handle)


def test_who_was_struck_in_a_pass_left_something_undone(channel: Channel) -> None:
    def were() -> tuple[bool, bool]:
        return was_in_pass(channel, is_helper=True), was_in_pass(channel, is_helper=False)

    assert were() == (False, False)
    channel.is_awake = True
    assert were() == (False, True)
    channel.ask(1)
    assert were() == (True, True)
    channel.is_awake = False  # nobody waits for it any more
    assert were() == (True, False)
    channel.answer(1, 2, Outcome.DONE)
    assert were() == (False, False)


@pytest.mark.parametrize(
    ("name", "aim", "is_violation"),
    [
        ("helper-0", Aim.IN_PASS, False), ("helper-0", Aim.NO_PASS, True),
        ("worker-0", Aim.NO_PASS, False), ("redis", None, False),
    ],
)  # fmt: skip
def test_a_helper_s_fault_is_to_meet_a_pass(name: str, aim: Aim | None, is_violation: bool) -> None:
    report = Report()
    Met(0.0, 2, aim).judge(report, Fault(name=name, stop_s=0.0))
    assert bool(report.violations) == is_violation
    assert report.counts["faults in an assisted pass"] == (aim is Aim.IN_PASS)


def test_streams_may_wait_for_the_link_besides() -> None:
    fault = Fault(name="helper-1", stop_s=5.0)
    assert fault.gap_max_s == 1.5, "it is given up long before"
    for load_s, num_violations in ((0.0, 1), (1.0, 0)):
        report = Report()
        judge(report, fault, toll_of(stream(GOOD, [9.0, 11.4])), load_s)
        assert len(report.violations) == num_violations


def test_workers_have_helpers_where_the_worker_says_so() -> None:
    assert not Wanted(num=0, lora_start="assist").has_helpers
    assert Wanted(num=1, lora_start="assist").has_helpers
    assert Wanted(num=1, link_mb_s=1).has_helpers and not Wanted(num=1).has_helpers
    assert not Wanted(num=1, lora_start="wait", link_mb_s=1).has_helpers


def test_without_adapters_a_deployment_is_what_it_was() -> None:
    with offered(Wanted(), 1, 1) as offer:
        assert (offer.options, offer.settings, offer.load_s) == ((), {}, 0.0)


@pytest.mark.parametrize("option", ["--adapters", "--link-mb-s"])
def test_numbers_below_0_are_refused(option: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        chaos.run(["--kill", "nats", option, "-1"])
