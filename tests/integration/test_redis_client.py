"""A client of Redis that is closed leaves no connection, whatever was under way."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.runtime.redis_client import RedisClient
from tests.conftest import Server


def test_a_command_under_way_does_not_connect_again_after_the_close(redis_server: Server) -> None:
    async def scenario() -> None:
        client: Any = RedisClient(redis_server.url, None, timeout_s=20)
        observer: Any = Redis.from_url(redis_server.url)
        try:
            blocked = asyncio.create_task(client.execute_command("blpop", "nothing", 0))
            while not any(one["cmd"] == "blpop" for one in await observer.client_list()):
                pass
            await client.aclose()
            with pytest.raises(RedisConnectionError):
                await blocked
            with pytest.raises(RedisConnectionError, match="closed"):
                await client.get("key")
            pool = client.connection_pool
            connections = [*pool._available_connections, *pool._in_use_connections]
            assert connections and not any(one.is_connected for one in connections)
            while len(await observer.client_list()) > 1:
                pass
        finally:
            await client.aclose()
            await observer.aclose()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_restart_of_redis_costs_no_command(redis_server: Server) -> None:
    async def scenario() -> None:
        client: Any = RedisClient(redis_server.url, None, timeout_s=20)
        try:
            assert await client.set("key", "1")
            redis_server.kill()
            redis_server.start()
            await client.get("key")
        finally:
            await client.aclose()

    asyncio.run(asyncio.wait_for(scenario(), 30))
