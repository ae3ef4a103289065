"""Asks a running deployment, and its Redis, how they are."""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cli.base.runfile import RunState
from shared.bus import Bus
from shared.errors import ConfigError, SymphonyError, reason
from shared.runtime.access import RedisAccess
from shared.wire.deployment_view import whole_status
from shared.wire.messages import Empty, HintStatus, KvPool, KvStats, SchedulerStatus, StartStage
from shared.wire.subjects import KV_STATS, SCHEDULER_STATUS, SERVICE_STATUS

ANSWER_TIMEOUT_S = 1.0
CONNECT_TIMEOUT_S = 2.0
HOSTS_MAX = 1024
SHARD_NAME = re.compile(r"scheduler-shard-\d+")
SERVERS = ("nats", "redis")  # they answer no status call


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Answers of a deployment at one moment.

    Attributes:
        states: by pid, what each service says of itself.
        stages: by pid, what those that start are doing.
        models_served: that a frontend answers for.
        scheduler: None while none answers.
        pools: what workers have room for.
        stores: one a host.
        hints: what frontends and tracker know of advisories.
        redis_trouble: why Redis cannot be reached; empty: it can.
    """

    states: dict[int, str]
    stages: dict[int, StartStage] = field(default_factory=dict)
    models_served: frozenset[str] = frozenset()
    scheduler: SchedulerStatus | None
    stores: list[KvStats]
    pools: list[KvPool] = field(default_factory=list)
    hints: list[HintStatus] = field(default_factory=list)
    redis_trouble: str = ""

    def models_missing(self) -> set[str]:
        """Models that a ready worker serves and that cannot be asked for all the same, because no
        frontend has their files yet.
        """
        workers = self.scheduler.workers if self.scheduler else []
        served = {name for worker in workers if worker.state == "ready" for name in worker.models}
        return served - self.models_served

    def num_ready_workers(self) -> int:
        """Workers that the scheduler would place a turn on."""
        workers = self.scheduler.workers if self.scheduler else []
        return sum(worker.state == "ready" for worker in workers)


async def take_snapshot(run: RunState) -> Snapshot:
    """Ask everyone at once. What does not answer in time is missing from the answer.

    Raises:
        PeerUnavailable: NATS itself cannot be reached.
    """
    bus = await Bus.connect(run.nats_url, "cli", run.nats_access, timeout_s=CONNECT_TIMEOUT_S)
    try:
        num_services = sum(child.name not in SERVERS for child in run.services)
        # Our own NATS reaches our kvstores alone; on a shared one there may be more: wait for them.
        is_own = any(child.name == "nats" for child in run.services)
        num_stores = run.num_hosts if is_own else HOSTS_MAX
        services, schedulers, stores, trouble = await asyncio.gather(
            bus.gather(SERVICE_STATUS, Empty(), timeout_s=ANSWER_TIMEOUT_S, num_max=num_services),
            bus.gather(
                SCHEDULER_STATUS, Empty(), timeout_s=ANSWER_TIMEOUT_S, num_max=_num_shards(run)
            ),
            bus.gather(KV_STATS, Empty(), timeout_s=ANSWER_TIMEOUT_S, num_max=num_stores),
            redis_trouble(run.redis_url, run.redis_access),
        )
    finally:
        await bus.drain()
    return Snapshot(
        states={service.pid: service.state for service in services},
        stages={s.pid: s.stage for s in services if s.stage is not None},
        models_served=frozenset(name for service in services for name in service.models),
        scheduler=whole_status(schedulers),
        stores=stores,
        pools=[pool for service in services for pool in service.pools],
        hints=[service.hints for service in services if service.hints is not None],
        redis_trouble=trouble,
    )


def _num_shards(run: RunState) -> int:
    """Schedulers that place turns: of those that are divided all, else the one that leads."""
    shards = {name for name in run.names if SHARD_NAME.fullmatch(name)}
    return len(shards) or 1


async def redis_trouble(url: str, access: RedisAccess) -> str:
    """Why Redis does not answer, or nothing."""
    try:
        redis: Any = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **access.options(url))
    except ConfigError as error:
        return error.message
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await redis.ping()
    except (RedisError, OSError) as error:  # a timeout is an OSError
        return reason(error)
    finally:
        await redis.aclose()
    return ""


def look(run: RunState) -> Snapshot | None:
    """`take_snapshot` for synchronous callers; None when the deployment cannot be asked now."""
    try:
        return asyncio.run(take_snapshot(run))
    except SymphonyError:
        return None


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs. One that has ended but was not yet waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
