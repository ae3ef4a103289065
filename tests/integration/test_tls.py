"""TLS to NATS and Redis, and from the frontend, with a certificate that nobody else trusts."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from cli.base.children import free_port, start_nats_by, stop_child
from cli.inspection.snapshot import redis_trouble
from loadtest.servers import wait_for_port
from services.frontend.config import FrontendConfig
from services.frontend.service import main
from shared.bus import Bus
from shared.errors import ConfigError, PeerUnavailable
from shared.runtime.access import NatsAccess, RedisAccess, trusting, trusting_only
from tests.certificates import Certificate, make_certificate
from tests.cluster import Cluster
from tests.conftest import Server
from tests.integration.harness import running


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path / "tls", "IP:127.0.0.1")


def test_nats_by_tls_is_the_one_that_the_file_vouches_for(
    certificate: Certificate, tmp_path: Path
) -> None:
    port, config = free_port(), tmp_path / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{port}\n"
        f'tls {{ cert_file: "{certificate.cert}", key_file: "{certificate.key}" }}\n'
    )
    child = start_nats_by(config, log_path=tmp_path / "nats.log")
    url = f"tls://127.0.0.1:{port}"

    async def connect(ca_file: Path | None) -> None:
        bus = await Bus.connect(url, "test", NatsAccess(ca_file=ca_file), timeout_s=2.0)
        assert bus.connected
        await bus.drain()

    try:
        wait_for_port(child, port, "nats")
        asyncio.run(connect(certificate.cert))
        with pytest.raises(PeerUnavailable, match="signed certificate"):
            asyncio.run(connect(None))
    finally:
        stop_child(child)


@asynccontextmanager
async def wrapped(certificate: Certificate, port: int) -> AsyncIterator[int]:
    """A port where TLS leads to another port of this machine."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            pump(reader, back_writer), pump(back_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_redis_by_tls_is_the_one_that_the_file_vouches_for(
    certificate: Certificate, redis_server: Server
) -> None:
    async def troubles() -> tuple[str, str]:
        async with wrapped(certificate, redis_server.port) as port:
            url = f"rediss://127.0.0.1:{port}/0"
            known = RedisAccess(ca_file=certificate.cert)
            return await redis_trouble(url, known), await redis_trouble(url, RedisAccess())

    known, unknown = asyncio.run(troubles())
    assert known == ""
    assert "self" in unknown and "signed certificate" in unknown


def test_the_frontend_speaks_https(
    certificate: Certificate, nats_server: Server, redis_server: Server
) -> None:
    port = free_port()
    config = FrontendConfig(
        nats_url=nats_server.url, redis_url=redis_server.url, http_port=port,
        http_cert_file=certificate.cert, http_key_file=certificate.key,
    )  # fmt: skip

    async def scenario() -> None:
        async with running(main, config, "frontend"):
            context = trusting(certificate.cert, "-")
            async with httpx.AsyncClient(verify=context) as client:
                assert (await client.get(f"https://127.0.0.1:{port}/ping")).status_code == 200
                with pytest.raises(httpx.HTTPError):
                    await client.get(f"http://127.0.0.1:{port}/ping")
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await client.get(f"https://127.0.0.1:{port}/ping")

    asyncio.run(scenario())


def test_files_that_cannot_be_used_end_the_start(certificate: Certificate, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give both"):
        FrontendConfig(http_cert_file=certificate.cert).tls_files  # noqa: B018
    other = make_certificate(tmp_path / "other", "IP:127.0.0.1")
    with pytest.raises(ConfigError, match=r"SYMPHONY_HTTP_KEY_FILE=.*KEY_VALUES_MISMATCH"):
        FrontendConfig(http_cert_file=certificate.cert, http_key_file=other.key).tls_files  # noqa: B018
    with pytest.raises(ConfigError, match=r"SYMPHONY_NATS_CA_FILE=.*no certificate"):
        NatsAccess(ca_file=certificate.key).options()
    with pytest.raises(ConfigError, match=r"SYMPHONY_REDIS_CA_FILE=.*No such file"):
        RedisAccess(ca_file=tmp_path / "none").options("rediss://r:1/0")


def test_a_house_of_https_is_up_under_whatever_name(tmp_path: Path) -> None:
    made = make_certificate(tmp_path / "tls", "DNS:chat.example.org")
    env = {
        "SYMPHONY_HTTP_CERT_FILE": str(made.cert),
        "SYMPHONY_HTTP_KEY_FILE": str(made.key),
    }
    with Cluster(tmp_path / "house", "--workers", "0", settings=env) as cluster:
        assert cluster.run.url == f"https://127.0.0.1:{cluster.port}"
        assert cluster.run.http_cert_file == made.cert
        with httpx.Client(verify=trusting_only(made.cert)) as client:
            assert client.get(f"{cluster.run.url}/ping").status_code == 200
        other = make_certificate(tmp_path / "other", "DNS:chat.example.org")
        with (
            httpx.Client(verify=trusting_only(other.cert)) as client,
            pytest.raises(httpx.ConnectError, match="certificate"),
        ):
            client.get(f"{cluster.run.url}/ping")
