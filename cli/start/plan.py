"""What a house consists of: its options, checked, and the children they call for."""

import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from urllib.parse import quote

from cli.adapters.offered import Offer
from cli.start.credentials import redis_password_file, services_nkey_file
from cli.start.gpus import VISIBLE, gpus_of_workers
from cli.supervisor.children import start_child, start_nats_by, start_redis_by
from shared.access import NatsAccess, RedisAccess
from shared.config import default_host_id
from shared.errors import ConfigError
from shared.ids import HostId
from shared.private import remove_private

ROOT = Path(__file__).resolve().parents[2]
FREE_BYTES_MIN = 64 * 1024**2
PROBE_BYTES = 4096
SHARED_MEMORY = Path("/dev/shm")
SOCKET_PATH_BYTES_MAX = 107  # what the kernel takes
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseOptions:
    """What `symphony up` was asked for.

    Attributes:
        models: what was asked for, or once that is prepared folders (absolute) and hub ids; none:
            the default.
        adapters: that everybody may use, once the house stands.
        emulate: latency profile of emulated workers; None: real ones.
        num_spares: hot spares of each scheduler process.
        num_shards: processes among which the batching of one-shot models is divided; 1: it is done
            in the one scheduler.
        allow_hosts: more names by which the frontend is reached; none: what its setting says.
        nats_url, redis_url: running servers to use; None: start our own.
        restart: whether a child that dies is started again.
        ready_timeout_s: how long the start may take.
    """

    data_dir: Path
    models: tuple[str, ...] = ()
    num_workers: int = 1
    emulate: str | None = None
    adapters: tuple[Offer, ...] = ()
    num_spares: int = 0
    num_shards: int = 1
    host: str = "127.0.0.1"
    port: int = 8080
    allow_hosts: tuple[str, ...] = ()
    nats_url: str | None = None
    redis_url: str | None = None
    restart: bool = True
    ready_timeout_s: float = 900.0

    @property
    def url(self) -> str:
        """Where to reach the frontend from this machine."""
        address = _ANY_ADDRESS.get(self.host, self.host)
        return (
            f"http://[{address}]:{self.port}" if ":" in address else f"http://{address}:{self.port}"
        )

    @property
    def host_id(self) -> HostId:
        """Names this house's KV; the same at every start on this data folder, and no other's."""
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:8]
        return HostId(f"{default_host_id()[:48]}-{digest}")

    @property
    def credentials_dir(self) -> Path:
        """Secrets of this house's own servers."""
        return self.data_dir / "credentials"

    @property
    def redis_socket(self) -> Path:
        """Where our own Redis listens: in its folder, or elsewhere if that path is too long."""
        path = self.data_dir / "redis" / "redis.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        place = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:16]
        return Path(place) / f"symphony-{os.geteuid()}-{digest}" / "redis.sock"

    def remove_socket(self) -> None:
        """Take the folder of `redis_socket` away if it is not in the data folder."""
        if not self.redis_socket.is_relative_to(self.data_dir):
            remove_private(self.redis_socket.parent)

    @property
    def arena_dir(self) -> Path:
        """Shared memory of this house."""
        return SHARED_MEMORY / f"symphony-{self.host_id}"


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One process of the house.

    Attributes:
        stop_stage: children stop in the order of their stages, those of one stage together.
        listens: port of loopback or socket that it listens on once it is up, if others wait for
            that.
        service: whose settings it reads, and in which environment; of servers none.
    """

    name: str
    stop_stage: int
    log_path: Path
    start: Callable[[], "Popen[bytes]"] = field(repr=False)
    listens: int | Path | None = None
    service: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class HousePlan:
    """Every process of a house, in the order they start.

    Attributes:
        environment: what all services have in common.
        start_asker: starts the process that asks the others how they are; None: nobody asks.
        nats_port: where our own NATS listens, if we have one.
        nats_access, redis_access: beside their addresses.
        http_cert_file: of the frontend; None: it speaks no TLS.
    """

    nats_url: str
    redis_url: str
    servers: list[ChildPlan]
    services: list[ChildPlan]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    start_asker: Callable[[], "Popen[bytes]"] | None = field(default=None, repr=False)
    nats_port: int = 0
    nats_access: NatsAccess = field(default_factory=NatsAccess)
    redis_access: RedisAccess = field(default_factory=RedisAccess)
    http_cert_file: Path | None = None


def python_path(environment: Mapping[str, str]) -> str:
    """``PYTHONPATH`` of a process that is to run our code: this checkout, then what was there."""
    return os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))


def check_data_dir(data_dir: Path) -> None:
    """Make the folder unless it is there, and see that there is room in it.

    Raises:
        ConfigError: it cannot be made or written to, or the disk is full.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=data_dir) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
        free_bytes = shutil.disk_usage(data_dir).free
    except OSError as error:
        raise ConfigError(f"--data-dir {data_dir}: {error.strerror}") from None
    if free_bytes < FREE_BYTES_MIN:
        raise ConfigError(
            f"--data-dir {data_dir}: the disk is full ({free_bytes // 1024**2} MiB free, "
            f"{FREE_BYTES_MIN // 1024**2} MiB needed)"
        )


def check_port(host: str, port: int) -> None:
    """See that the frontend will be able to listen.

    Raises:
        ConfigError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def plan_house(options: HouseOptions, nats_port: int, environment: Mapping[str, str]) -> HousePlan:
    """The children that `options` call for, NATS on this port, in this environment."""
    data_dir, logs = options.data_dir, options.data_dir / "logs"
    servers = []
    access = {}  # to our own servers; what those we were given ask for is in the environment
    nats_url, redis_url = options.nats_url, options.redis_url
    if nats_url is None:
        nats_url = f"nats://127.0.0.1:{nats_port}"
        access["SYMPHONY_NATS_NKEY_FILE"] = str(services_nkey_file(options.credentials_dir))
        log = logs / "nats.log"

        def nats() -> "Popen[bytes]":
            return start_nats_by(data_dir / "nats" / "nats.conf", log_path=logs / "nats.log")

        servers.append(ChildPlan("nats", 5, log, nats, nats_port))
    if redis_url is None:
        redis_url = f"unix://{quote(str(options.redis_socket))}?db=0"
        access["SYMPHONY_REDIS_PASSWORD_FILE"] = str(redis_password_file(options.credentials_dir))
        log = logs / "redis.log"

        def redis() -> "Popen[bytes]":
            return start_redis_by(data_dir / "redis" / "redis.conf", log_path=logs / "redis.log")

        servers.append(ChildPlan("redis", 5, log, redis, options.redis_socket))
    common = {
        **environment,
        **access,
        "SYMPHONY_NATS_URL": nats_url,
        "SYMPHONY_REDIS_URL": redis_url,
        "SYMPHONY_HOST_ID": options.host_id,
        "SYMPHONY_INSTANCE": "0",
        "SYMPHONY_DATA_DIR": str(data_dir),
        "SYMPHONY_ARENA_DIR": str(options.arena_dir),
        "SYMPHONY_SCHEDULER_SHARDS": str(options.num_shards),
        "SYMPHONY_METRICS_PORT": "0",  # one port cannot serve them all
        "PYTHONPATH": python_path(environment),
        "PYTHONUNBUFFERED": "1",
    }
    names = (server.name for server in servers)
    asker = [sys.executable, "-P", "-m", "cli.supervisor.asker", *names]

    def start_asker() -> "Popen[bytes]":
        return start_child(asker, log_path=logs / "asker.log", env=common, is_piped=True)

    services = _services(options, common, logs, environment.get("SYMPHONY_METRICS_PORT", "0"))
    return HousePlan(nats_url, redis_url, servers, services, common, start_asker, nats_port)


def _services(
    options: HouseOptions, common: Mapping[str, str], logs: Path, metrics_port: str
) -> list[ChildPlan]:
    worker = {"SYMPHONY_EMULATE": options.emulate or ""}
    if "SYMPHONY_NUM_THREADS" not in common:
        # Workers that compute on all cores each would only wait for one another.
        cores_each = max(1, (os.cpu_count() or 1) // max(1, options.num_workers))
        worker["SYMPHONY_NUM_THREADS"] = str(cores_each)
    if options.models:
        worker["SYMPHONY_MODELS"] = json.dumps(options.models)
    frontend = {"SYMPHONY_HTTP_ADDRESS": options.host, "SYMPHONY_HTTP_PORT": str(options.port)}
    if options.allow_hosts:
        frontend["SYMPHONY_ALLOW_HOSTS"] = json.dumps(options.allow_hosts)
    sees: list[dict[str, str]] = [{} for _ in range(options.num_workers)]
    if options.emulate is None:
        for seen, gpu in zip(sees, gpus_of_workers(options.num_workers, common), strict=False):
            seen[VISIBLE] = gpu
    wanted: list[tuple[str, str, int, dict[str, str]]] = [
        ("kvstore", "kvstore", 4, _kvstore(options, common)),
        *((name, "scheduler", 2, extra) for name, extra in _schedulers(options)),
        ("tracker", "tracker", 1, {}),
        *(
            (f"worker-{i}", "worker", 3, {**worker, **sees[i], **_of_worker(i, metrics_port)})
            for i in range(options.num_workers)
        ),
        ("frontend", "frontend", 0, frontend),
    ]
    return [
        _service(name, module, stage, {**common, **extra}, logs / f"{name}.log")
        for name, module, stage, extra in wanted
    ]


def _kvstore(options: HouseOptions, common: Mapping[str, str]) -> dict[str, str]:
    """Settings of the kvstore: it may read the adapters that it will be given."""
    if not options.adapters:
        return {}
    offered = [str(offer.folder) for offer in options.adapters]
    name = "SYMPHONY_ADAPTER_DIRS"
    try:
        given = json.loads(common.get(name, "[]"))
    except ValueError:
        return {}  # the kvstore's settings are checked, and this one is told
    return {name: json.dumps([*given, *offered])} if isinstance(given, list) else {}


def _of_worker(number: int, metrics_port: str) -> dict[str, str]:
    """Settings of one worker. Metrics have a port of each worker's own, from the given one on; what
    is no port is the worker's to refuse."""
    if metrics_port.isdecimal() and int(metrics_port):
        metrics_port = str(int(metrics_port) + number)
    return {"SYMPHONY_INSTANCE": str(number), "SYMPHONY_METRICS_PORT": metrics_port}


def _schedulers(options: HouseOptions) -> list[tuple[str, dict[str, str]]]:
    """(name, settings) of every scheduler process: those that work first, then their spares."""
    roles: list[tuple[str, dict[str, str]]] = [("scheduler", {})]
    if options.num_shards > 1:
        roles = [("scheduler-rank", {"SYMPHONY_SCHEDULER_ROLE": "rank"})]
        for shard in range(options.num_shards):
            settings = {"SYMPHONY_SCHEDULER_ROLE": "shard", "SYMPHONY_SCHEDULER_SHARD": str(shard)}
            roles.append((f"scheduler-shard-{shard}", settings))
    spares = [
        (f"{name}-spare-{number}", settings)
        for number in range(options.num_spares)
        for name, settings in roles
    ]
    return [
        (name, {**settings, "SYMPHONY_INSTANCE": name.removeprefix("scheduler-") or "0"})
        for name, settings in roles + spares
    ]


def _service(
    name: str, service: str, stage: int, env: Mapping[str, str], log_path: Path
) -> ChildPlan:
    # -P: the folder the user stands in is no place to import from.
    command = [sys.executable, "-P", "-m", f"services.{service}"]
    return ChildPlan(
        name,
        stage,
        log_path,
        lambda: start_child(command, log_path=log_path, env=env),
        service=service,
        environment=env,
    )
