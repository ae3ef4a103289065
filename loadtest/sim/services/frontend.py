"""Frontends: the production service on simulated ports."""

import json
import tempfile
from concurrent.futures import Executor, Future
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

from loadtest.sim.client import SimBus, SimClient, Store
from loadtest.sim.http import Exchange, Reader, Request, SimHttp
from loadtest.sim.redis import RedisServer, SimRedis
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.model import ADAPTERS, MODEL
from loadtest.sim.services.oneshot import JOB_MODEL
from loadtest.sim.services.service import Service
from loadtest.sim.timeline import MS, SECOND, Timeline
from loadtest.sim.tokenizer import SimModelFiles, SimTexts
from services.frontend.app import App
from services.frontend.compiling.maker import GrammarMaker
from services.frontend.config import FrontendConfig
from services.frontend.ports import Ports
from services.frontend.service import main
from shared.adapters.record import EVERYBODY, adapters_redis_key, encode_adapter
from shared.bus import Bus
from shared.ids import HostId, TenantId, TurnId
from shared.service import Runtime
from shared.wire.hint_accounts import HintLimits
from shared.wire.messages import AdapterRecord

PROMPT_BYTES_MAX = (0, 600, 8192)  # none, some, and all prompts go along with their first submits
HINT_LIMITS = HintLimits(per_place=160, per_tenant=320)  # so small that they are reached
DRAIN_S = 1.0
LATE_NS = 5 * MS  # of an alarm
PUBLISH_NS = 2 * SECOND


class SimThreads(Executor):
    """Threads of one process; what they are given runs at once."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Frontend(Service):
    """Args:
    tenants: that have a key, see `key_of`.
    """

    deployment: SimDeployment
    kind = "frontend"

    def __init__(
        self,
        deployment: SimDeployment,
        store: Store,
        redis: RedisServer,
        tenants: tuple[TenantId, ...],
        number: int,
    ) -> None:
        super().__init__(deployment, f"frontend-{number}", store)
        self._redis = redis
        self._keys_file = keys_file(tenants)
        self._ways = Random(f"ways {self.name} {deployment.random.random()}")
        self._exchanges: dict[Exchange, None] = {}
        self._http: SimHttp | None = None

    @property
    def is_listening(self) -> bool:
        """Whether clients can connect."""
        return self.is_ready and self._http is not None and self._http.is_listening

    @property
    def num_open(self) -> int:
        """Requests that are not answered yet."""
        return len(self._exchanges)

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self.runtime is not None and self.runtime.stopping.is_set()

    @property
    def app(self) -> App | None:
        """Its parts; None before they are made."""
        app: App | None = self.part("app")
        return app

    def config(self) -> FrontendConfig:
        deployment = self.deployment
        return FrontendConfig(
            instance=self.name,
            api_keys_file=self._keys_file,
            deployed_models=[MODEL, JOB_MODEL],
            scheduler_shards=deployment.num_shards,
            tracker_shards=deployment.num_tracker_shards,
            hints_per_client=HINT_LIMITS.per_place,
            hints_per_tenant=HINT_LIMITS.per_tenant,
            drain_s=DRAIN_S,
            prompt_sent_bytes_max=deployment.random.choice(PROMPT_BYTES_MAX),
        )

    def on_start(self) -> None:
        self._attempts: dict[TurnId, int] = {}
        super().on_start()

    def check(self) -> None:
        """What the shell waits for is what its cores have open, no turn goes back to an earlier
        attempt, and jobs whose inputs a batch missed are soon submitted again.
        """
        if (app := self.app) is None:
            return
        hub, jobs = app.hub, app.jobs
        turns = hub._turns._turns
        assert hub._boxes.keys() == turns.keys(), f"{self.name} waits for other turns"
        for turn_id, turn in turns.items():
            assert turn.attempt >= self._attempts.get(turn_id, 0), f"{turn_id} goes back"
        self._attempts = {turn_id: turn.attempt for turn_id, turn in turns.items()}
        groups = jobs._jobs._groups
        assert jobs._waiters.keys() == groups.keys(), f"{self.name} waits for other jobs"
        if self._backlog:  # alarms may wait behind this
            return
        missed_ns = jobs._jobs._limits.missed_ns + LATE_NS
        for group in groups.values():
            is_due = group.missed_at_ns is not None and self.now_ns < group.new.deadline_at_ns
            is_late = is_due and self.now_ns > (group.missed_at_ns or 0) + missed_ns
            assert not is_late, f"{group.new.request_id} waits for nothing"

    async def main(self, runtime: Runtime, config: FrontendConfig) -> None:
        """The production service, on ports of this life."""
        self._http = SimHttp(self.loop, config.drain_s)
        await main(runtime, config, self._ports(runtime, self._http))

    def on_crash(self) -> None:
        """Its clients see their connections break."""
        super().on_crash()
        self._http = None
        for exchange in [*self._exchanges]:
            exchange.break_off()

    def request(self, request: Request, reader: Reader) -> Exchange:
        """A client connects and sends a request."""
        exchange = Exchange(self._timeline, self._ways, self, request, reader, self._forget)
        self._exchanges[exchange] = None

        def begin() -> None:
            http = self._http
            if http is None or not http.is_listening:
                exchange.break_off(is_refused=True)
            else:
                http.accept(exchange)

        exchange.send(begin)
        return exchange

    def _forget(self, exchange: Exchange) -> None:
        self._exchanges.pop(exchange, None)

    def _ports(self, runtime: Runtime, http: SimHttp) -> Ports:
        async def connect(_: str) -> Bus:
            return SimBus(SimClient(self.deployment.wires, self, self.loop), self.store)

        def redis(timeout_s: float) -> SimRedis:
            return SimRedis(self._redis, self._timeline, self, self.loop, self._ways, timeout_s)

        return Ports(
            http=http,
            connect=connect,
            redis=redis,
            threads=lambda *_: SimThreads(),
            texts=lambda _: SimTexts(),
            grammars=GrammarMaker(runtime.clock),
            model_files=SimModelFiles(self.deployment.model.vocab_size),
            upload_files=cast(Any, None),  # no adapter is uploaded
            draw=self._ways.random,
        )


def publish_adapters(redis: RedisServer, timeline: Timeline) -> None:
    """Put all adapters into Redis now, and again soon after it lost them, as kvstores do."""

    def publish() -> None:
        timeline.after(PUBLISH_NS, publish)
        if redis.is_up and redis.takes_writes:
            for name, record in _adapter_records().items():
                redis.execute("HSET", adapters_redis_key(EVERYBODY), name, record)

    publish()


@cache
def _adapter_records() -> dict[str, bytes]:
    """By name, as they stand in Redis."""
    records = [
        AdapterRecord(
            name=ref.name,
            tenant=EVERYBODY,
            model_id=MODEL,
            adapter_hash=ref.adapter_hash,
            ranks=ref.ranks,
            lora_rank=ref.lora_rank,
            num_bytes=1,
            image_bytes=ref.image_bytes,
            root="",
            host_id=HostId("h0"),
            created=0,
            revision=1,
        )
        for ref in ADAPTERS
    ]
    return {record.name: encode_adapter(record) for record in records}


def key_of(tenant: TenantId) -> str:
    """The tenant's API key."""
    return f"key-of-{tenant}"


@cache
def keys_file(tenants: tuple[TenantId, ...]) -> Path:
    """A file with the keys of these tenants, for as long as this interpreter runs."""
    keys = [{"key": key_of(tenant), "tenant": tenant} for tenant in tenants]
    file = tempfile.NamedTemporaryFile("w", prefix="keys-", suffix=".json")  # noqa: SIM115
    json.dump(keys, file)
    file.flush()
    _FILES.append(file)
    return Path(file.name)


_FILES: list[Any] = []  # are removed when they are closed
