"""What the supervisor is told of real servers and services."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.base.children import free_port
from cli.base.config import LauncherConfig
from cli.supervisor.asker import Asker, answers_at
from cli.supervisor.liveness import Answer, Round
from shared.service import Runtime
from tests.conftest import Server
from tests.integration.harness import running

INTERVAL_S = 0.1
ANSWER_S = 5.0


async def serve_nothing(runtime: Runtime, _: LauncherConfig) -> None:
    await runtime.ready()
    await runtime.stopping.wait()


async def wait_for(rounds: "asyncio.Queue[Round]", is_it: Callable[[Round], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_it(await rounds.get()):
            pass


def is_all_there(heard: Round) -> bool:
    me = Answer("stub", "0", os.getpid(), "ready")
    return heard.is_passed_on and me in heard.services and set(heard.servers) == {"nats", "redis"}


def test_services_and_servers_are_heard_and_again_after_nats_stood_still(
    nats_server: Server, redis_server: Server
) -> None:
    async def scenario() -> None:
        config = LauncherConfig(
            nats_url=nats_server.url, redis_url=redis_server.url, status_interval_s=INTERVAL_S
        )
        rounds: asyncio.Queue[Round] = asyncio.Queue()
        asker = asyncio.create_task(Asker(config, ["nats", "redis"], rounds.put_nowait).run())
        async with running(serve_nothing, config, "stub"):
            await wait_for(rounds, is_all_there)
            nats_server.child.send_signal(signal.SIGSTOP)
            await wait_for(
                rounds,
                lambda heard: heard.servers == ["redis"] and not heard.is_passed_on,
            )
            nats_server.child.send_signal(signal.SIGCONT)
            await wait_for(rounds, is_all_there)
            nats_server.kill()
            await wait_for(rounds, lambda heard: heard.servers == ["redis"])
            nats_server.start()
            await wait_for(rounds, is_all_there)
        asker.cancel()
        await asyncio.gather(asker, return_exceptions=True)

    asyncio.run(scenario())


def test_rounds_go_on_before_nats_is_there(redis_server: Server, tmp_path: Path) -> None:
    port = free_port()

    async def scenario() -> None:
        config = LauncherConfig(
            nats_url=f"nats://127.0.0.1:{port}", redis_url=redis_server.url,
            status_interval_s=INTERVAL_S,
        )  # fmt: skip
        rounds: asyncio.Queue[Round] = asyncio.Queue()
        asker = asyncio.create_task(Asker(config, ["nats", "redis"], rounds.put_nowait).run())
        await wait_for(rounds, lambda heard: heard.servers == ["redis"])
        nats = Server("nats", port, tmp_path)
        await wait_for(rounds, lambda heard: heard.is_passed_on)
        asker.cancel()
        await asyncio.gather(asker, return_exceptions=True)
        nats.close()

    asyncio.run(scenario())


def test_a_redis_that_wants_a_password_answers_and_a_stopped_one_does_not(
    redis_server: Server,
) -> None:
    async def ask(timeout_s: float = ANSWER_S) -> bool:
        return await answers_at(redis_server.url, timeout_s)

    async def require_password() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", redis_server.port)
        writer.write(b"CONFIG SET requirepass secret\r\n")
        assert await reader.readline() == b"+OK\r\n"
        writer.close()

    asyncio.run(require_password())
    assert asyncio.run(ask())
    redis_server.child.send_signal(signal.SIGSTOP)
    assert not asyncio.run(ask(0.2))
    redis_server.child.send_signal(signal.SIGCONT)
    assert asyncio.run(ask())
    redis_server.kill()
    assert not asyncio.run(ask())


@pytest.mark.parametrize("does_speak", [True, False])
def test_to_be_hung_up_on_is_an_answer(does_speak: bool) -> None:
    async def scenario() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if does_speak:
                writer.write(b"-ERR go away\r\n")
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert await answers_at(f"redis://127.0.0.1:{port}/0", ANSWER_S)

    asyncio.run(scenario())
