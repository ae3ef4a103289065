"""NATS as `up` configures it: what separates tenants from the services and from each other."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import ServiceUnavailableError

from cli.base.children import free_port, start_nats_by, stop_child
from cli.start.credentials import nkey_file
from cli.start.options import DeploymentOptions
from cli.start.servers import TENANT_CONNECTIONS_MAX, prepare_servers
from loadtest.servers import wait_for_port
from shared.bus import Bus, RawMessage
from shared.errors import PeerUnavailable, SymphonyError
from shared.ids import TenantId
from shared.runtime.access import NatsAccess
from shared.wire.messages import Advisory, AdvisoryState, Empty, ServiceStatus
from shared.wire.subjects import (
    ADVISORY_SUBMIT,
    INFERENCE_SUBMIT,
    LEASES,
    SERVICE_STATUS,
    TENANT_ADVISORY_SUBMIT,
    TENANT_INFERENCE_SUBMIT,
    WORKER_REPORT,
)
from tests.integration.harness import eventually

ACME, ODD = TenantId("acme"), TenantId("odd name.*>é")
NUM_CHUNKS = 2000
PAUSE_S = 1.5


@dataclass(frozen=True)
class Place:
    """A server with accounts, and where its credentials are."""

    url: str
    options: DeploymentOptions

    async def tenant(self, tenant: TenantId) -> Client:
        seed = nkey_file(self.options.credentials_dir, tenant)
        return await nats.connect(self.url, nkeys_seed=str(seed))

    @property
    def access(self) -> NatsAccess:
        """The services'."""
        return NatsAccess(nkey_file=self.options.credentials_dir / "services.nk")

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        bus = await Bus.connect(self.url, "service", self.access)
        try:
            yield bus
        finally:
            await bus.drain()

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[tuple[Client, Client]]:
        """One of `ACME`, one of `ODD`."""
        clients = await self.tenant(ACME), await self.tenant(ODD)
        try:
            yield clients
        finally:
            for client in clients:
                await client.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    options, port = DeploymentOptions(data_dir=tmp_path / "house"), free_port()
    prepare_servers(options, port, {ACME, ODD}, 2**30)
    folder = options.data_dir / "nats"
    child = start_nats_by(folder / "nats.conf", log_path=folder / "nats.log")
    wait_for_port(child, port, "nats")
    yield Place(f"nats://127.0.0.1:{port}", options)
    stop_child(child)


def run(place: Place, scenario: Callable[[Bus, Client, Client], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with place.bus() as bus, place.clients() as (acme, odd):
            await scenario(bus, acme, odd)

    asyncio.run(whole())


async def ask(client: Client, subject: str, body: bytes) -> Msg:
    """A request's answer. A server may say for an instant that nobody listens (see `Bus`)."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await client.request(subject, body, timeout=10)
            except NoRespondersError:
                await asyncio.sleep(0.02)


async def overhear(client: Client) -> list[Msg]:
    """Everything that a tenant can hear, from now on."""
    heard: list[Msg] = []

    async def on_message(msg: Msg) -> None:
        heard.append(msg)

    for subject in (">", "symphony.>", "_INBOX.>", "_R_.>", "$JS.>"):
        await client.subscribe(subject, cb=on_message)
    await client.flush()
    return heard


def test_nobody_gets_in_without_a_key(place: Place) -> None:
    async def knock(**options: str) -> None:
        async def quiet(_: Exception) -> None:
            pass

        client = Client()
        try:
            await client.connect(place.url, allow_reconnect=False, error_cb=quiet, **options)  # type: ignore[arg-type]
        finally:
            await client.close()

    with pytest.raises(NatsError, match="Authorization Violation"):
        asyncio.run(knock())
    with pytest.raises(NatsError, match="Authorization Violation"):
        asyncio.run(knock(user="SERVICES", password=""))
    with pytest.raises(PeerUnavailable, match="Authorization Violation"):
        asyncio.run(Bus.connect(place.url, "stranger", timeout_s=0.5))


def test_a_request_arrives_with_the_tenant_whose_key_it_came_with(place: Place) -> None:
    async def scenario(bus: Bus, acme: Client, odd: Client) -> None:
        async def submit(tenant: TenantId, advisory: Advisory) -> AdvisoryState:
            if advisory.priority == 2:
                raise SymphonyError("as asked")
            return AdvisoryState(
                session_id=advisory.session_id, state="expected", model_id=None, tenant=tenant
            )

        await bus.serve_tenants(TENANT_ADVISORY_SUBMIT, submit)
        await bus.flush()
        for client, tenant in ((acme, ACME), (odd, ODD)):
            body = b'{"session_id": "s", "tenant": "other"}'
            reply = await ask(client, ADVISORY_SUBMIT.pattern, body)
            assert f'"tenant":"{tenant}"'.encode() in reply.data
        reply = await ask(acme, ADVISORY_SUBMIT.pattern, b'{"session_id": "s", "priority": 2}')
        assert reply.headers == {"Symphony-Error": "internal_error"}

    run(place, scenario)


def test_a_tenant_sees_nothing_of_the_services_and_of_other_tenants(place: Place) -> None:
    async def scenario(bus: Bus, acme: Client, odd: Client) -> None:
        async def answer(message: RawMessage) -> None:
            await bus.publish_raw(message.reply, message.payload)

        async def status(_: Empty) -> ServiceStatus:
            return ServiceStatus(service="s", instance="0", pid=1, state="ready")

        heard = await overhear(odd)
        await bus.serve_raw(TENANT_INFERENCE_SUBMIT, answer, "q")
        await bus.serve(SERVICE_STATUS, status)
        await bus.flush()
        assert (await ask(acme, INFERENCE_SUBMIT, b"hello")).data == b"hello"
        await bus.request(SERVICE_STATUS, Empty())
        await bus.bucket(LEASES)
        with pytest.raises(NoRespondersError):
            await acme.request(SERVICE_STATUS.pattern, b"{}", timeout=5)
        with pytest.raises(ServiceUnavailableError):
            await acme.jetstream(timeout=5).account_info()
        await bus.flush()
        await odd.flush()
        assert heard == []

    run(place, scenario)


def test_a_tenant_reaches_nothing_but_the_public_subjects(place: Place) -> None:
    async def scenario(bus: Bus, acme: Client, odd: Client) -> None:
        heard: list[tuple[str, bytes]] = []
        done = asyncio.Event()

        async def note(message: RawMessage) -> None:
            heard.append((message.subject, message.payload))
            if message.payload == b"last":
                done.set()
            elif message.reply:
                await bus.publish_raw(message.reply, b"an answer")

        for subject in ("symphony.>", "$JS.API.>", "_INBOX.>"):
            await bus.serve_raw(subject, note, "")
        await bus.flush()
        others = await overhear(odd)
        inbox = odd.new_inbox()
        await odd.subscribe(inbox)
        await odd.flush()
        await ask(acme, INFERENCE_SUBMIT, b"first")  # from now on what is published arrives
        for subject in (
            WORKER_REPORT.pattern,
            "symphony.tenant.odd.inference.submit",
            "symphony.tenant.acme.inference.submit",
            "$JS.API.STREAM.DELETE.KV_symphony-leases",
            inbox,
        ):
            await acme.publish(subject, b"forged")
        # What is no inbox is not answered; another's inbox is taken for one of their own account.
        for reply in (WORKER_REPORT.pattern, inbox, TENANT_INFERENCE_SUBMIT.replace("*", "x")):
            await acme.publish(INFERENCE_SUBMIT, b"asked", reply=reply)
        await acme.publish(INFERENCE_SUBMIT, b"last")
        await asyncio.wait_for(done.wait(), 10)
        await odd.flush()
        own = TENANT_INFERENCE_SUBMIT.replace("*", "acme")
        assert {subject for subject, _ in heard if ".reply.acme." not in subject} == {own}
        assert [payload for subject, payload in heard if subject == own].count(b"asked") == 3
        assert others == []

    run(place, scenario)


def test_a_stream_of_answers_arrives_whole_also_after_a_pause(place: Place) -> None:
    async def scenario(bus: Bus, acme: Client, odd: Client) -> None:
        async def stream(message: RawMessage) -> None:
            for number in range(NUM_CHUNKS):
                if number % (NUM_CHUNKS // 4) == 1:
                    await asyncio.sleep(PAUSE_S)
                await bus.publish_raw(message.reply, b"%d" % number)
            await bus.publish_raw(message.reply, b"")

        await bus.serve_raw(TENANT_INFERENCE_SUBMIT, stream, "q")
        await bus.flush()
        received: list[bytes] = []

        async def on_chunk(msg: Msg) -> None:
            received.append(msg.data)

        await ask(acme, INFERENCE_SUBMIT, b"first")  # from now on what is published arrives
        inbox = acme.new_inbox()
        await acme.subscribe(inbox, cb=on_chunk)
        await acme.publish(INFERENCE_SUBMIT, b"", reply=inbox)
        await eventually(lambda: received[-1:] == [b""], timeout_s=60)
        assert received == [*(b"%d" % number for number in range(NUM_CHUNKS)), b""]

    run(place, scenario)


def test_a_tenant_is_told_when_nobody_listens(place: Place) -> None:
    async def scenario(bus: Bus, acme: Client, odd: Client) -> None:
        with pytest.raises(NoRespondersError):
            await acme.request(INFERENCE_SUBMIT, b"", timeout=5)
        with pytest.raises((NoRespondersError, NatsTimeoutError)):
            await acme.request("symphony.other", b"", timeout=0.5)

    run(place, scenario)


def test_the_server_keeps_nothing_of_requests_and_little_for_a_tenant(place: Place) -> None:
    """A service's requests would each be kept until they are answered, for an hour if need be."""
    config = (place.options.data_dir / "nats" / "nats.conf").read_text()
    assert "service:" not in config

    async def scenario() -> None:
        clients = [await place.tenant(ACME) for _ in range(TENANT_CONNECTIONS_MAX)]
        one_more, seed = Client(), nkey_file(place.options.credentials_dir, ACME)
        with pytest.raises(NatsError, match="maximum account active connections"):
            await one_more.connect(
                place.url, nkeys_seed=str(seed), allow_reconnect=False, error_cb=quiet
            )
        await one_more.close()
        await (await place.tenant(ODD)).close()
        for client in clients:
            await client.close()

    async def quiet(_: Exception) -> None:
        pass

    asyncio.run(scenario())


def test_credentials_last_and_a_new_tenant_gets_its_own(place: Place) -> None:
    folder = place.options.credentials_dir
    before = {path.name: path.read_text() for path in folder.iterdir()}
    prepare_servers(place.options, 1, {ACME, TenantId("new")}, 2**30)
    after = {path.name: path.read_text() for path in folder.iterdir()}
    assert after.items() > before.items()
    assert after.keys() - before.keys() == {"tenant-new.nk"}
    config = (place.options.data_dir / "nats" / "nats.conf").read_text()
    assert "tenant-odd" not in config  # whose key is taken back
    assert not re.search("|".join(text.strip() for text in after.values()), config)
