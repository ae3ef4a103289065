"""Two trackers in processes of their own: one leads, the other goes on with what it has heard."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from subprocess import Popen

from cli.base.children import start_child, stop_child
from shared.bus import Bus
from shared.ids import ModelId, SessionId, TurnId, WorkerId
from shared.runtime.settings import as_variables
from shared.wire.messages import (
    Advisory,
    AgentRef,
    AgentTurnLeft,
    Empty,
    ExpectSession,
    ServiceStatus,
    SessionPlacement,
    TurnArrived,
)
from shared.wire.subjects import (
    ADVISORY_SUBMIT,
    AGENT_TURN_LEFT,
    SERVICE_STATUS,
    SESSION_EXPECT,
    TURN_ARRIVED,
)
from tests.conftest import Server
from tests.integration.harness import connected, eventually, eventually_answers

ADVISORY = Advisory(session_id=SessionId("s"), model_id=ModelId("m"))


def test_a_spare_takes_over_with_what_agents_did(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus:
            expected: list[str] = []

            async def place(message: ExpectSession) -> SessionPlacement:
                expected.append(message.session_id)
                return SessionPlacement(worker_id=WorkerId("w1"))

            await bus.serve(SESSION_EXPECT, place, "0")
            leader = start("0", nats_server.url, tmp_path)
            processes.append(leader)
            assert (await bus.request(ADVISORY_SUBMIT, ADVISORY, grace_s=20)).state == "placed"
            processes.append(start("spare", nats_server.url, tmp_path))
            await eventually_answers(
                lambda: bus.gather(SERVICE_STATUS, Empty(), timeout_s=0.1), are_two_ready
            )
            for number, name in enumerate("abababab"):
                await come_and_go(bus, number, name)
            await eventually(lambda: "s-b" in expected)
            assert "lease leading" not in (tmp_path / "spare.log").read_text()
            leader.send_signal(signal.SIGKILL)
            leader.wait()
            # The other leads once it has seen that nobody does: a while where processes stall.
            state = await bus.request(ADVISORY_SUBMIT, ADVISORY, timeout_s=30, grace_s=20)
            assert (state.state, state.num_merged) == ("placed", 0), "by one who knows of no other"
            expected.clear()
            await come_and_go(bus, 8, "a", 1)
            await eventually(lambda: "s-b" in expected)

    processes: list[Popen[bytes]] = []
    try:
        asyncio.run(scenario())
    finally:
        for process in processes:
            stop_child(process)


def start(instance: str, url: str, folder: Path) -> Popen[bytes]:
    env = {
        **os.environ,
        "SYMPHONY_NATS_URL": url,
        "SYMPHONY_INSTANCE": instance,
        **as_variables({"tracker_slack_s": "0.2"}),
    }
    command = [sys.executable, "-m", "services.tracker"]
    return start_child(command, log_path=folder / f"{instance}.log", env=env)


def are_two_ready(statuses: list[ServiceStatus]) -> bool:
    return [each.state for each in statuses if each.service == "tracker"] == ["ready"] * 2


async def come_and_go(bus: Bus, number: int, name: str, num_trackers: int = 2) -> None:
    """An agent's turn comes, and when every tracker has heard of it, it is over."""
    agent, session = AgentRef(agent=name, workflow_id="w"), SessionId(f"s-{name}")
    arrived = TurnArrived(session_id=session, turn_id=TurnId(f"t{number}"), agent=agent)
    await bus.publish(TURN_ARRIVED, arrived)
    await bus.gather(SERVICE_STATUS, Empty(), timeout_s=5, num_max=num_trackers)
    await bus.publish(AGENT_TURN_LEFT, AgentTurnLeft(agent=agent, session_id=session))
    await bus.gather(SERVICE_STATUS, Empty(), timeout_s=5, num_max=num_trackers)
