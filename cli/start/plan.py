"""What a deployment consists of: the children that its options call for; what keeps it from
starting.
"""

import errno
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from subprocess import Popen
from urllib.parse import quote

from cli.base.children import python_path, start_child, start_nats_by, start_redis_by
from cli.base.listeners import listener
from cli.models.names import served_as
from cli.start.ahead import start_standby
from cli.start.credentials import peers_secret_file, redis_password_file, services_nkey_file
from cli.start.gpus import VISIBLE, gpus_of_workers
from cli.start.hosts import host_environment, peering
from cli.start.options import DeploymentOptions
from cli.start.server_data import ServerData, nats_data, redis_data
from services.worker.models.demo_model import DEMO_MODEL_ID
from shared.errors import ConfigError
from shared.runtime.access import NatsAccess, RedisAccess
from shared.runtime.settings import as_variables
from shared.zoo import parse_emulation

FREE_BYTES_MIN = 64 * 1024**2
PROBE_BYTES = 4096
WORKERS_MAX = 64  # of all hosts together


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One process of the deployment.

    Attributes:
        stop_stage: children stop in the order of their stages, those of one stage together.
        listens: port of loopback or socket that it listens on once it is up, if others wait for
            that.
        service: whose settings it reads, and in which environment; of servers none.
        data: what a server keeps on disk.
    """

    name: str
    stop_stage: int
    log_path: Path
    start: Callable[[], "Popen[bytes]"] = field(repr=False)
    listens: int | Path | None = None
    service: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    data: ServerData | None = None


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """Every process of a deployment, in the order they start.

    Attributes:
        environment: what all services have in common.
        start_asker: starts the process that asks the others for their status; None: none does.
        start_standby: starts a process that can become a worker; None: its workers start fast.
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
    start_standby: Callable[[], "Popen[bytes]"] | None = field(default=None, repr=False)
    nats_port: int = 0
    nats_access: NatsAccess = field(default_factory=NatsAccess)
    redis_access: RedisAccess = field(default_factory=RedisAccess)
    http_cert_file: Path | None = None


def check_data_dir(data_dir: Path) -> None:
    """Make the folder unless it is there, and see that there is room in it.

    Raises:
        ConfigError: it cannot be made or written to, anybody may write to it, or the disk is full.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=data_dir) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
        free_bytes = shutil.disk_usage(data_dir).free
        mode = data_dir.stat().st_mode
    except OSError as error:
        raise ConfigError(f"--data-dir {data_dir}: {error.strerror}") from None
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"--data-dir {data_dir}: anybody may write to it (mode {stat.S_IMODE(mode):04o}), and "
            f"lead elsewhere what is written there: chmod o-w {data_dir}, or use another"
        )
    if free_bytes < FREE_BYTES_MIN:
        raise ConfigError(
            f"--data-dir {data_dir}: the disk is full ({free_bytes // 1024**2} MiB free, "
            f"{FREE_BYTES_MIN // 1024**2} MiB needed)"
        )


def check_size(options: DeploymentOptions) -> None:
    """See that this is no larger than a machine.

    Raises:
        ConfigError: it is to have more workers than that.
    """
    if options.num_workers_in_all > WORKERS_MAX:
        raise ConfigError(
            f"--hosts {options.num_hosts} --workers {options.num_workers}: that is "
            f"{options.num_workers_in_all} workers, and a machine runs at most {WORKERS_MAX}"
        )


def check_port(host: str, port: int, option: str = "--port") -> None:
    """See that a service will be able to listen.

    Args:
        option: that gives the port.

    Raises:
        ConfigError: the port is taken, and by which process, if it is one of this user's; or the
            address is not this machine's. Names the option.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        owner = listener(port) if error.errno == errno.EADDRINUSE else None
        by = "" if owner is None else f" by {owner}"
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"{option} {port}: cannot listen on {host}: {why}{by}") from None


def plan_deployment(
    options: DeploymentOptions, nats_port: int, environment: Mapping[str, str]
) -> DeploymentPlan:
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

        data = nats_data(data_dir / "nats")
        servers.append(ChildPlan("nats", 5, log, nats, nats_port, data=data))
    if redis_url is None:
        redis_url = f"unix://{quote(str(options.redis_socket))}?db=0"
        access["SYMPHONY_REDIS_PASSWORD_FILE"] = str(redis_password_file(options.credentials_dir))
        log = logs / "redis.log"

        def redis() -> "Popen[bytes]":
            return start_redis_by(data_dir / "redis" / "redis.conf", log_path=logs / "redis.log")

        data = redis_data(data_dir / "redis")
        servers.append(ChildPlan("redis", 5, log, redis, options.redis_socket, data=data))
    common = {
        **environment,
        **access,
        "SYMPHONY_NATS_URL": nats_url,
        "SYMPHONY_REDIS_URL": redis_url,
        "SYMPHONY_HOST_ID": options.host_id,
        "SYMPHONY_INSTANCE": "0",
        "SYMPHONY_DATA_DIR": str(data_dir),
        "SYMPHONY_SCHEDULER_SHARDS": str(options.num_shards),
        "SYMPHONY_TRACKER_SHARDS": str(options.num_tracker_shards),
        "SYMPHONY_METRICS_PORT": "0",  # one port cannot serve them all
        "PYTHONPATH": python_path(environment),
        "PYTHONUNBUFFERED": "1",
    }
    names = (server.name for server in servers)
    asker = [sys.executable, "-P", "-m", "cli.supervisor.asker", *names]

    def start_asker() -> "Popen[bytes]":
        return start_child(asker, log_path=logs / "asker.log", env=common, is_piped=True)

    services = _services(options, common, logs, environment.get("SYMPHONY_METRICS_PORT", "0"))
    return DeploymentPlan(
        nats_url, redis_url, servers, services, common, start_asker,
        _standby_of(options, common, logs), nats_port,
    )  # fmt: skip


def _standby_of(
    options: DeploymentOptions, common: Mapping[str, str], logs: Path
) -> Callable[[], "Popen[bytes]"] | None:
    """See `DeploymentPlan.start_standby`."""
    if options.emulate is not None or not options.num_workers or options.engine == "vllm":
        return None
    is_small = _deployed(options, common) == [DEMO_MODEL_ID]
    dtypes = []
    if not is_small and not gpus_of_workers(1, common):
        dtypes.append(options.dtype or "bfloat16")  # of most models, and so of the CPU's kernels
    return lambda: start_standby(common, logs / "standby.log", dtypes)


def _services(
    options: DeploymentOptions, common: Mapping[str, str], logs: Path, metrics_port: str
) -> list[ChildPlan]:
    frontend = {"SYMPHONY_HTTP_ADDRESS": options.host, "SYMPHONY_HTTP_PORT": str(options.port)}
    if options.allow_hosts:
        frontend["SYMPHONY_ALLOW_HOSTS"] = json.dumps(options.allow_hosts)
    if options.cors_origins:
        frontend["SYMPHONY_CORS_ORIGINS"] = json.dumps(options.cors_origins)
    frontend.setdefault("SYMPHONY_METRICS_OF_HOUSE", common.get("SYMPHONY_METRICS_OF_HOUSE", "1"))
    if options.served_names:
        frontend["SYMPHONY_SERVED_MODEL_NAMES"] = json.dumps(options.served_names)
    if (deployed := _deployed(options, common)) and "SYMPHONY_DEPLOYED_MODELS" not in common:
        frontend["SYMPHONY_DEPLOYED_MODELS"] = json.dumps(deployed)
    wanted: list[tuple[str, str, int, dict[str, str]]] = [
        *((name, "kvstore", 4, own) for name, own in _kvstores(options, common)),
        *((name, "scheduler", 2, extra) for name, extra in _schedulers(options)),
        *((name, "tracker", 1, own) for name, own in _trackers(options)),
        *((name, "worker", 3, own) for name, own in _workers(options, common, metrics_port)),
        ("frontend", "frontend", 0, frontend),
    ]
    return [
        _service(
            name,
            module,
            stage,
            {**common, **extra},
            logs / f"{name}.log",
            options.worker_python if module == "worker" else "",
        )
        for name, module, stage, extra in wanted
    ]


def _deployed(options: DeploymentOptions, common: Mapping[str, str]) -> list[str]:
    """Names of the models that the workers will serve; none where their settings are wrong, which
    their own check reports.
    """
    if not options.num_workers:
        return []
    try:
        if options.emulate is not None:
            emulated = parse_emulation(options.emulate)
            generative = [profile.name for profile in emulated.generative]
            return generative + [model.name for model in emulated.oneshot]
        given = options.models or json.loads(common.get("SYMPHONY_MODELS", "[]"))
        return [served_as(each) for each in given] or [DEMO_MODEL_ID]
    except (ConfigError, ValueError, TypeError):
        return []


def _kvstores(
    options: DeploymentOptions, common: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """(name, settings) of every kvstore, one a host."""
    shared = {
        **_adapter_dirs(options, common),
        **_host_count(options.num_hosts, common),
        **peering(options.num_hosts, peers_secret_file(options.credentials_dir), common),
    }
    for host in options.hosts:
        yield host.name_of("kvstore"), {**shared, **host_environment(host, "kvstore")}


def _host_count(num_hosts: int, common: Mapping[str, str]) -> dict[str, str]:
    """Settings of kvstores: how many share the machine."""
    if num_hosts == 1:
        return {}
    return as_variables({"num_hosts_here": str(num_hosts)}, common)


def _workers(
    options: DeploymentOptions, common: Mapping[str, str], metrics_port: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """(name, settings) of every worker, host by host. Instances are numbered on each host; ports
    and GPUs are the machine's, and go on from host to host.
    """
    num_workers = options.num_workers_in_all
    shared = {"SYMPHONY_EMULATE": options.emulate or ""}
    if options.has_true_pages:
        shared["SYMPHONY_TRUE_PAGES"] = "1"
    if options.max_model_len is not None:
        shared["SYMPHONY_MAX_MODEL_LEN"] = str(options.max_model_len)
    if options.dtype is not None:
        shared["SYMPHONY_DTYPE"] = options.dtype
    if options.engine != "symphony":
        shared["SYMPHONY_ENGINE"] = options.engine
    if "SYMPHONY_NUM_THREADS" not in common:
        # Workers that compute on all cores each would only wait for one another.
        cores_each = max(1, (os.cpu_count() or 1) // max(1, num_workers))
        shared["SYMPHONY_NUM_THREADS"] = str(cores_each)
    if options.models:
        shared["SYMPHONY_MODELS"] = json.dumps(options.models)
    gpus: list[str] = []
    if options.emulate is None:
        gpus = gpus_of_workers(options.num_workers, common, options.num_hosts)
    sees = [{VISIBLE: gpu} for gpu in gpus] or [{}] * num_workers
    numbers = product(options.hosts, range(options.num_workers))
    for number, (host, instance) in enumerate(numbers):
        yield (
            host.name_of("worker", instance),
            {
                **shared,
                **sees[number],
                **host_environment(host, "worker"),
                "SYMPHONY_INSTANCE": str(instance),
                "SYMPHONY_METRICS_PORT": _port_of(number, metrics_port),
            },
        )


def _adapter_dirs(options: DeploymentOptions, common: Mapping[str, str]) -> dict[str, str]:
    """Settings of kvstores: they may read the adapters that one of them will be given."""
    if not options.adapters:
        return {}
    offered = [str(offer.folder) for offer in options.adapters]
    name = "SYMPHONY_ADAPTER_DIRS"
    try:
        given = json.loads(common.get(name, "[]"))
    except ValueError:
        return {}  # refused when the kvstore's settings are checked
    return {name: json.dumps([*given, *offered])} if isinstance(given, list) else {}


def _port_of(number: int, metrics_port: str) -> str:
    """Port of one worker's metrics. Each has its own, from the given one on; what is no port is the
    worker's to refuse.
    """
    if metrics_port.isdecimal() and int(metrics_port):
        return str(int(metrics_port) + number)
    return metrics_port


def _schedulers(options: DeploymentOptions) -> list[tuple[str, dict[str, str]]]:
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


def _trackers(options: DeploymentOptions) -> Iterator[tuple[str, dict[str, str]]]:
    """(name, settings) of the tracker, or of its shards, and then of their spares."""
    roles: list[tuple[str, dict[str, str]]] = [("tracker", {})]
    if options.num_tracker_shards > 1:
        roles = [
            (f"tracker-shard-{shard}", {"SYMPHONY_TRACKER_SHARD": str(shard)})
            for shard in range(options.num_tracker_shards)
        ]
    spares = [
        (f"{name}-spare-{number}", settings)
        for number in range(options.num_spares)
        for name, settings in roles
    ]
    for name, settings in roles + spares:
        instance = name.removeprefix("tracker").removeprefix("-") or "0"
        yield name, {**settings, "SYMPHONY_INSTANCE": instance}


def _service(
    name: str, service: str, stage: int, env: Mapping[str, str], log_path: Path, python: str
) -> ChildPlan:
    """Args:
    python: to run it by; empty: the one of this process.
    """
    # -P: the folder the user stands in is no place to import from.
    command = [python or sys.executable, "-P", "-m", f"services.{service}"]
    return ChildPlan(
        name,
        stage,
        log_path,
        lambda: start_child(command, log_path=log_path, env=env),
        service=service,
        environment=env,
    )
