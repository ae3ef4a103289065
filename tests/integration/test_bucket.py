"""Compare and set in NATS' key-value store."""

import asyncio

import pytest

from shared.bus.bucket import Entry, RevisionConflict
from shared.errors import PeerUnavailable
from shared.wire.messages import LeaderLease
from shared.wire.subjects import LEASES
from tests.conftest import Server
from tests.integration.harness import client_of, connected

LEASE = LeaderLease(instance="a", fence=1)


def test_a_write_needs_the_latest_revision(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as one, connected(nats_server.url) as other:
            ours, theirs = await one.bucket(LEASES), await other.bucket(LEASES)
            assert await ours.get("k") == Entry(None, 0)
            first = await ours.create("k", LEASE)
            with pytest.raises(RevisionConflict):
                await theirs.create("k", LEASE)
            second = await theirs.update("k", LEASE, first)
            with pytest.raises(RevisionConflict):
                await ours.update("k", LEASE, first)
            assert await ours.get("k") == Entry(LEASE, second)
            assert await ours.get("other") == Entry(None, 0)

    asyncio.run(scenario())


def test_what_others_deleted_or_garbled_is_none_and_can_be_written(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus:
            bucket = await bus.bucket(LEASES)
            await bucket.create("k", LEASE)
            plain = await client_of(bus).jetstream().key_value(LEASES.name)  # as `nats kv` does
            assert (await plain.get("k")).value is not None
            await plain.delete("k")
            deleted = await bucket.get("k")
            assert deleted.value is None
            revision = await bucket.update("k", LEASE, deleted.revision)
            assert await bucket.get("k") == Entry(LEASE, revision)
            garbled = await plain.put("k", b"{}")
            assert await bucket.get("k") == Entry(None, garbled)

    asyncio.run(scenario())


def test_revisions_of_a_bucket_made_anew_are_higher(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus:
            bucket = await bus.bucket(LEASES)
            old = await bucket.create("k", LEASE)
            await client_of(bus).jetstream().delete_stream(f"KV_{LEASES.name}")
            with pytest.raises(PeerUnavailable):
                await bucket.update("k", LEASE, old)
            assert await bucket.get("k") == Entry(None, 0)  # and the bucket is there again
            assert await bucket.create("k", LEASE) > old

    asyncio.run(scenario())


def test_a_store_that_is_away_is_unavailable(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus:
            bucket = await bus.bucket(LEASES, timeout_s=0.1)
            nats_server.kill()
            with pytest.raises(PeerUnavailable):
                await bucket.get("k")
            with pytest.raises(PeerUnavailable):
                await bucket.create("k", LEASE)

    asyncio.run(scenario())


def test_a_server_that_is_alone_keeps_no_lease_on_its_disk(nats_server: Server) -> None:
    """Which may be full."""

    async def scenario() -> None:
        async with connected(nats_server.url) as bus:
            await (await bus.bucket(LEASES)).create("k", LEASE)
            assert not list(nats_server.directory.rglob(f"KV_{LEASES.name}"))

    asyncio.run(scenario())
