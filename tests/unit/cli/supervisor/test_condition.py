"""Whether a deployment is all there, decided from what was heard of it."""

import asyncio
from dataclasses import replace

import pytest

from cli.base.children import free_port
from cli.base.runfile import RunState
from cli.inspection.condition import assess
from cli.inspection.snapshot import Snapshot, redis_trouble
from shared.runtime.access import RedisAccess

NAMES = ["nats", "redis", "kvstore", "scheduler", "tracker", "worker-0", "frontend"]
ALL_WELL = dict.fromkeys(NAMES, "ready")
HEARD = Snapshot(states={}, scheduler=None, stores=[])
RUN = RunState(
    pid=1, state="ready", url="http://u", nats_url="nats://me:secret@n:1",
    redis_url="redis://:secret@r:2/0", host_id="h", num_workers=1, services=[], names=NAMES,
)  # fmt: skip


def test_a_deployment_that_is_all_there_is_ready() -> None:
    condition = assess(RUN, ALL_WELL, HEARD)
    assert (condition.state, condition.reasons) == ("ready", [])


@pytest.mark.parametrize("state", ["starting", "stopping"])
def test_before_and_after_nothing_is_missed(state: str) -> None:
    condition = assess(replace(RUN, state=state), {}, None)
    assert (condition.state, condition.reasons) == (state, [])


def test_redis_is_named_with_its_reason_and_what_it_costs_but_not_its_password() -> None:
    heard = replace(HEARD, redis_trouble="Connection refused")
    expected = (
        "Redis at redis://***@r:2/0 cannot be reached (Connection refused): "
        "conversations are not remembered"
    )
    without = {name: state for name, state in ALL_WELL.items() if name != "redis"}
    for states in (ALL_WELL, without):  # somebody else's, and our own that died: told of once
        condition = assess(RUN, states, heard)
        assert (condition.state, condition.reasons) == ("degraded", [expected])


@pytest.mark.parametrize("name", ["kvstore", "tracker", "scheduler", "worker-0"])
@pytest.mark.parametrize("state", ["away", "dead", "starting", "draining"])
def test_a_process_that_is_not_there_is_named(name: str, state: str) -> None:
    states = {**ALL_WELL, name: state}
    if state == "away":  # it waits for its restart
        del states[name]
    condition = assess(RUN, states, HEARD)
    assert condition.state == "degraded"
    [reason] = condition.reasons
    assert reason.startswith(f"{name} is {state}: ")


def test_every_process_has_a_price() -> None:
    assert len(assess(RUN, {}, HEARD).reasons) == len(NAMES)
    spares = replace(RUN, names=["scheduler-rank", "scheduler-shard-0", "scheduler-spare-0"])
    assert len(assess(spares, {}, HEARD).reasons) == 3


def test_without_nats_nothing_else_can_be_told() -> None:
    condition = assess(RUN, {}, None)
    assert condition.state == "degraded"
    assert condition.reasons == ["NATS at nats://***@n:1 cannot be reached: nothing can be served"]


def test_redis_is_asked_itself() -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    assert asyncio.run(redis_trouble(url, RedisAccess())) == "Connection refused"
