"""Three NATS servers as Kubernetes runs them: one cluster, whose leases outlive any one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli import health, replicate_leases, setup_kubernetes
from cli.base.children import free_port, start_nats_by, stop_child
from loadtest.servers import wait_for_port
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.runtime.config import ServiceConfig
from shared.wire.messages import LeaderLease
from shared.wire.subjects import LEASES
from tests.integration.harness import client_of


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServiceConfig]]:
    """How to get onto each of them."""
    monkeypatch.setenv("SYMPHONY_API_KEYS_FILE", "")
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key": "k", "tenant": "acme"}]')
    items = setup_kubernetes.make_secrets(tmp_path / "house", keys)
    texts = {each["metadata"]["name"]: each["stringData"] for each in items}["nats"]
    ports = [(free_port(), free_port()) for _ in range(3)]
    whole = texts["cluster.conf"]
    for server, (_, route_port) in zip(setup_kubernetes.NATS_SERVERS, ports, strict=True):
        assert server in whole
        whole = whole.replace(server, f"127.0.0.1:{route_port}")
    with ExitStack() as stack:
        configs, children = [], []
        for number, (port, route_port) in enumerate(ports):
            folder = tmp_path / f"nats-{number}"
            folder.mkdir()
            config = texts["nats.conf"].replace("port: 4222", f"listen: 127.0.0.1:{port}")
            config = config.replace("http: 127.0.0.1:8222", "")
            config = config.replace('"/data"', f'"{folder}/data"')
            (folder / "nats.conf").write_text(config)
            own = whole.replace("0.0.0.0:6222", f"127.0.0.1:{route_port}")
            (folder / "cluster.conf").write_text(own)
            monkeypatch.setenv("POD_NAME", folder.name)
            child = start_nats_by(folder / "cluster.conf", log_path=folder / "log")
            stack.callback(stop_child, child)
            children.append((child, port))
            nkey = tmp_path / "house" / "credentials" / "services.nk"
            configs.append(ServiceConfig(nats_url=f"nats://127.0.0.1:{port}", nats_nkey_file=nkey))
        for child, port in children:
            wait_for_port(child, port, "nats")
        yield configs


LEASE = LeaderLease(instance="a", fence=1)


def test_leases_have_three_copies(cluster: list[ServiceConfig]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60):
            await patiently(lambda: replicate_leases.replicate(cluster[0], 3))
            await replicate_leases.replicate(cluster[1], 3)  # once more does no harm
            bus = await Bus.connect(cluster[0].nats_url, "test", cluster[0].nats_access)
            try:
                bucket = await bus.bucket(LEASES)
                await patiently(lambda: bucket.create("k", LEASE))
                stream = await client_of(bus).jetstream().stream_info(replicate_leases.STREAM)
                assert stream.config.num_replicas == 3
                assert (await bucket.get("k")).value == LEASE
            finally:
                await bus.drain()

    asyncio.run(scenario())


async def patiently(work: Callable[[], Awaitable[object]]) -> None:
    """Again and again: the servers may have to find one another first, or to choose a leader."""
    while True:
        try:
            await work()
            return
        except PeerUnavailable:
            await asyncio.sleep(0.2)


def test_health_tells_a_service_from_nats(
    cluster: list[ServiceConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cluster[0]
    with pytest.raises(PeerUnavailable, match="no service answers"):
        asyncio.run(health.is_ready(config, "scheduler"))
    monkeypatch.setattr("sys.argv", ["health", "scheduler"])
    monkeypatch.setenv("SYMPHONY_NATS_URL", config.nats_url)
    monkeypatch.setenv("SYMPHONY_NATS_NKEY_FILE", str(config.nats_nkey_file))
    assert health.main() == health.NO_NATS
