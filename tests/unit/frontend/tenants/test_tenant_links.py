"""Who shares a connection for requests over NATS, and how much is taken from one."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.client import Client

from services.frontend.config import FrontendConfig
from services.frontend.tenants.auth import Caller, Keyring
from services.frontend.tenants.links import LINKS_MAX, connect_links
from shared.bus import Bus, paced
from shared.bus.paced import Pace, PacedClient
from shared.ids import TenantId
from shared.service import Runtime


def groups(
    keyring: Keyring, *, is_open: bool, connected: list[str] | None = None
) -> list[list[TenantId | None]]:
    """Tenants, as connections are made for them.

    Args:
        connected: names of connections, while they are open.
    """
    names = [] if connected is None else connected

    class OpenBus:
        async def drain(self) -> None:
            names.remove(names[-1])

    async def connect(name: str) -> Bus:
        names.append(name)
        return cast(Bus, OpenBus())

    async def scenario() -> list[list[TenantId | None]]:
        async with AsyncExitStack() as stack:
            runtime = SimpleNamespace(bus=SimpleNamespace(is_open=is_open), stack=stack)
            links = await connect_links(cast(Runtime, runtime), FrontendConfig(), keyring, connect)
            assert len(names) == len(links)
            assert all(link.is_public == (None in link.tenants) for link in links)
            return [link.tenants for link in links]

    return asyncio.run(scenario())


def test_each_tenant_has_a_connection_of_its_own() -> None:
    connected: list[str] = []
    ring = Keyring({name: Caller(TenantId(name)) for name in ("acme", "globex")})
    found = groups(ring, is_open=False, connected=connected)
    assert found == [["acme"], ["default"], ["globex"]]
    assert connected == [], "closed with the runtime"


def test_without_keys_or_accounts_everybody_shares_one() -> None:
    ring = Keyring({"k": Caller(TenantId("acme"))})
    assert groups(ring, is_open=True) == groups(Keyring(None), is_open=False) == [[None]]


def test_many_tenants_share_some() -> None:
    names = [f"t{number:03}" for number in range(300)]
    ring = Keyring({name: Caller(TenantId(name)) for name in names})
    made = groups(ring, is_open=False)
    assert len(made) == LINKS_MAX and max(map(len, made)) <= 5
    assert sorted(str(name) for group in made for name in group) == sorted(["default", *names])


@pytest.mark.parametrize(("num_bytes", "least_s", "most_s"), [(1, 8.9, 9.0), (50, 48.9, 49.0)])
def test_no_more_is_taken_than_the_pace_allows(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, least_s: float, most_s: float
) -> None:
    now = SimpleNamespace(s=100.0)
    taken: list[bytes] = []

    async def sleep(seconds: float) -> None:
        now.s += seconds

    async def process(_: object, *message: Any) -> None:
        taken.append(message[3])

    loop = SimpleNamespace(time=lambda: now.s)
    asynchronous = SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop)
    monkeypatch.setattr(paced, "asyncio", asynchronous)
    monkeypatch.setattr(Client, "_process_msg", process)

    async def scenario() -> None:
        client = PacedClient(Pace(messages_per_s=10, bytes_per_s=100))
        for _ in range(100):
            await client._process_msg(1, b"s", b"", b"x" * num_bytes, b"")

    asyncio.run(scenario())
    assert len(taken) == 100, "what is late is taken later, and nothing is lost here"
    assert least_s <= now.s - 100.0 <= most_s
