"""Several hosts on one machine: what each of their processes is told, and what `status` shows."""

import asyncio
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.adapters.offered import Offer
from cli.base.runfile import RunningService, RunState
from cli.inspection.description import describe
from cli.inspection.snapshot import HOSTS_MAX, Snapshot, take_snapshot
from cli.inspection.status import render
from cli.main import app
from cli.start.options import DeploymentOptions
from cli.start.plan import DeploymentPlan, check_size, plan_deployment
from cli.start.servers import prepare_servers
from cli.supervisor.deployment import check_start
from cli.supervisor.preflight import check_settings
from cli.supervisor.signals import StopSignals
from services.kvstore.config import KvstoreConfig
from services.worker.config import WorkerConfig
from shared.errors import ConfigError
from shared.ids import HostId, TenantId, WorkerId
from shared.runtime.config import load_config
from shared.wire.messages import (
    HintRate,
    HintStatus,
    KvStats,
    SchedulerStatus,
    Throttled,
    WorkerStatus,
)
from shared.wire.subjects import KV_STATS, Subject
from tests.unit.cli.supervisor.test_supervisor import make_supervisor
from tests.unit.cli.test_runfile import STATE

MIB = 1024**2


def plan(data_dir: Path, given: Mapping[str, str] | None = None, **options: int) -> DeploymentPlan:
    return plan_deployment(DeploymentOptions(data_dir=data_dir, **options), 1, given or {})  # type: ignore[arg-type]


def kvstores(planned: DeploymentPlan) -> list[KvstoreConfig]:
    return [
        load_config(KvstoreConfig, child.environment)
        for child in planned.services
        if child.service == "kvstore"
    ]


def workers(planned: DeploymentPlan) -> list[tuple[str, WorkerConfig]]:
    return [
        (child.name, load_config(WorkerConfig, child.environment))
        for child in planned.services
        if child.service == "worker"
    ]


def test_each_host_has_a_kvstore_with_folders_of_its_own(tmp_path: Path) -> None:
    common = {f"SYMPHONY_{name}": str(tmp_path) for name in ("ARENA_DIR", "DATA_DIR")}
    planned = plan(tmp_path, {**common, "SYMPHONY_HOST_ID": "h"}, num_hosts=3, num_workers=2)
    check_settings(planned)
    stores = kvstores(planned)
    assert [child.name for child in planned.services] == [
        "kvstore-0", "kvstore-1", "kvstore-2", "scheduler", "tracker",
        "worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1", "worker-2-0", "worker-2-1",
        "frontend",
    ]  # fmt: skip
    for folder_of in ("host_id", "arena_path", "disk_path", "adapters_path"):
        assert len({getattr(store, folder_of) for store in stores}) == 3, folder_of
    assert len({child.log_path for child in planned.services}) == len(planned.services)
    for store in stores:
        assert store.disk_path.is_relative_to(tmp_path)


def test_a_worker_is_on_its_host_s_side_and_reads_the_deployment_s_models(tmp_path: Path) -> None:
    planned = plan(tmp_path, num_hosts=2, num_workers=2)
    ids = [store.host_id for store in kvstores(planned)]
    told = [(name, config.host_id, config.instance) for name, config in workers(planned)]
    assert told == [
        ("worker-0-0", ids[0], "0"), ("worker-0-1", ids[0], "1"),
        ("worker-1-0", ids[1], "0"), ("worker-1-1", ids[1], "1"),
    ]  # fmt: skip
    assert {config.data_dir for _, config in workers(planned)} == {tmp_path}


def test_one_host_is_what_it_was_and_the_first_of_several_finds_its_kv(tmp_path: Path) -> None:
    (alone,), first = kvstores(plan(tmp_path)), kvstores(plan(tmp_path, num_hosts=2))[0]
    options = DeploymentOptions(data_dir=tmp_path)
    assert [child.name for child in plan(tmp_path).services] == [
        "kvstore", "scheduler", "tracker", "worker-0", "frontend",
    ]  # fmt: skip
    assert (alone.host_id, alone.data_dir) == (options.host_id, tmp_path)
    assert alone.arena_path == Path(f"/dev/shm/symphony-{options.host_id}")
    assert (first.host_id, first.data_dir) == (alone.host_id, alone.data_dir)
    assert first.arena_path == alone.arena_path
    frontend = plan(tmp_path, num_hosts=2).services[-1].environment
    assert frontend["SYMPHONY_HOST_ID"] == alone.host_id, "adapters go to the first host"


def test_several_hosts_share_a_secret_unless_they_are_given_one(tmp_path: Path) -> None:
    assert [store.peer_secret_file for store in kvstores(plan(tmp_path))] == [None]
    made = tmp_path / "credentials" / "peers.secret"
    assert [s.peer_secret_file for s in kvstores(plan(tmp_path, num_hosts=2))] == [made, made]
    given = {"SYMPHONY_PEER_SECRET_FILE": "/given"}
    assert {s.peer_secret_file for s in kvstores(plan(tmp_path, given, num_hosts=2))} == {
        Path("/given")
    }
    options = DeploymentOptions(
        data_dir=tmp_path, num_hosts=2, nats_url="nats://n", redis_url="redis://r"
    )
    prepare_servers(options, 1, [], 0)
    assert len(made.read_text()) > 32


@pytest.mark.parametrize(
    ("name", "value"), [("PEER_ADDRESS", "here:4500"), ("PEER_LISTEN", "127.0.0.1:4500")]
)
def test_what_one_host_alone_can_have_is_refused_for_several(
    tmp_path: Path, name: str, value: str
) -> None:
    given = {f"SYMPHONY_{name}": value}
    plan(tmp_path, given)
    with pytest.raises(ConfigError, match=f"--hosts 2: SYMPHONY_{name}"):
        plan(tmp_path, given, num_hosts=2)


def test_a_secret_in_the_file_of_settings_is_taken(tmp_path: Path) -> None:
    env_file = tmp_path / "settings"
    env_file.write_text("SYMPHONY_PEER_SECRET_FILE=/given\n")
    planned = plan(tmp_path, {"SYMPHONY_ENV_FILE": str(env_file)}, num_hosts=2)
    assert {store.peer_secret_file for store in kvstores(planned)} == {Path("/given")}


def test_ids_of_the_most_hosts_fit_a_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.start.options.default_host_id", lambda: "m" * 64)
    ids = {host.host_id for host in DeploymentOptions(data_dir=tmp_path, num_hosts=64).hosts}
    assert len(ids) == 64
    assert len({f"{host_id}-w63"[-64:] for host_id in ids}) == 64


def test_cores_ports_and_gpus_are_divided_among_the_workers_of_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    given = {"SYMPHONY_METRICS_PORT": "9100", "CUDA_VISIBLE_DEVICES": "5,6,7,8,9"}
    planned = plan(tmp_path, given, num_hosts=2, num_workers=2)
    found = workers(planned)
    assert [config.num_threads for _, config in found] == [2, 2, 2, 2]
    assert [config.metrics_port for _, config in found] == [9100, 9101, 9102, 9103]
    seen = [
        c.environment["CUDA_VISIBLE_DEVICES"] for c in planned.services if c.service == "worker"
    ]
    assert seen == ["5", "6", "7", "8"]


def test_every_kvstore_knows_how_many_hosts_share_the_machine(tmp_path: Path) -> None:
    def counts(num_hosts: int, **given: str) -> list[int]:
        environment = {f"SYMPHONY_{name}": value for name, value in given.items()}
        stores = kvstores(plan(tmp_path, environment, num_hosts=num_hosts))
        return [store.num_hosts_here for store in stores]

    assert counts(1) == [1]
    assert counts(3) == [3, 3, 3]
    constants = '{"objects_rest_s": 7}'
    (store, _) = kvstores(plan(tmp_path, {"SYMPHONY_DEVELOPMENT": constants}, num_hosts=2))
    assert (store.objects_rest_s, store.num_hosts_here) == (7, 2)
    with pytest.raises(ConfigError, match=r"SYMPHONY_ARENA_BYTES='1'"):
        counts(2, ARENA_BYTES="1")


def test_true_pages_are_told_to_workers_alone_and_only_when_asked(tmp_path: Path) -> None:
    options = DeploymentOptions(data_dir=tmp_path, emulate="zero")
    for is_asked in (True, False):
        planned = plan_deployment(replace(options, has_true_pages=is_asked), 1, {})
        ((_, config),) = workers(planned)
        assert (config.emulate, config.true_pages) == ("zero", is_asked)
    planned = plan_deployment(options, 1, {"SYMPHONY_TRUE_PAGES": "1"})
    assert workers(planned)[0][1].true_pages


def test_more_workers_than_a_machine_runs_are_refused(tmp_path: Path) -> None:
    check_size(DeploymentOptions(data_dir=tmp_path, num_hosts=8, num_workers=8))
    with pytest.raises(ConfigError, match=r"^--hosts 8 --workers 9: that is 72 workers"):
        check_size(DeploymentOptions(data_dir=tmp_path, num_hosts=8, num_workers=9))


def test_the_command_line_s_words_reach_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[DeploymentOptions] = []
    monkeypatch.setattr("cli.up.up", lambda options, _: asked.append(options))
    words = ["up", "--port", "1", "--data-dir", str(tmp_path), "--emulate", "zero"]
    for more in ([], ["--hosts", "3", "--workers", "2", "--true-pages"]):
        assert CliRunner().invoke(app, [*words, *more]).exit_code == 0
    plain = DeploymentOptions(data_dir=tmp_path, port=1, emulate="zero")
    assert asked == [plain, replace(plain, num_hosts=3, num_workers=2, has_true_pages=True)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hosts", "0"], "--hosts"),
        (["--hosts", "65"], "--hosts"),
        (["--hosts", "two"], "--hosts"),
        (["--hosts", "9", "--workers", "9", "--emulate", "zero"], "81 workers"),
        (["--true-pages"], "--emulate"),
    ],
)
def test_wrong_numbers_end_the_start_with_the_option_s_name(
    tmp_path: Path, words: list[str], said: str
) -> None:
    done = CliRunner().invoke(app, ["up", "--port", "0", "--data-dir", str(tmp_path), *words])
    assert done.exit_code
    assert said in done.output
    assert not list(tmp_path.iterdir())


def test_adapters_of_several_hosts_are_warned_of(tmp_path: Path) -> None:
    """As between machines, an adapter's files are on one host."""
    offers = (Offer("fox", tmp_path),)
    options = DeploymentOptions(data_dir=tmp_path, port=0, num_hosts=2, adapters=offers)
    (warning,) = check_start(options)
    assert "--adapter" in warning and "first host" in warning
    assert check_start(replace(options, num_hosts=1)) == []
    assert check_start(replace(options, adapters=())) == []


def test_a_deployment_is_ready_with_the_workers_of_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[int, int]] = []

    def look(run: RunState) -> Snapshot:
        looked.append((run.num_hosts, run.num_workers))
        workers = [worker(str(number), "h") for number in range(len(looked))]
        return Snapshot(states={}, scheduler=SchedulerStatus(workers=workers), stores=[])

    monkeypatch.setattr("cli.supervisor.readiness._answers", lambda *_: True)
    monkeypatch.setattr("cli.supervisor.readiness.look", look)
    monkeypatch.setattr(Snapshot, "models_missing", lambda _: set())
    with StopSignals() as signals:
        supervisor, _ = make_supervisor(tmp_path, signals, num_hosts=2)
        supervisor.wait_ready()
    assert looked == [(2, 2)] * 2


def test_status_waits_for_the_kvstore_of_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}

    class FakeBus:
        async def gather(
            self, subject: Subject[Any, Any], *_: object, num_max: int, **__: object
        ) -> list[object]:
            asked[subject.pattern] = num_max
            return []

        async def request(self, *_: object, **__: object) -> SchedulerStatus:
            return SchedulerStatus(workers=[])

        async def drain(self) -> None:
            return None

    async def connect(*_: object, **__: object) -> FakeBus:
        return FakeBus()

    monkeypatch.setattr("cli.inspection.snapshot.Bus.connect", connect)
    run = replace(STATE, redis_url="unix:///none", num_hosts=3)
    own = replace(run, services=[RunningService(name="nats", pid=1)])
    for state, num in ((own, 3), (replace(own, services=[]), HOSTS_MAX)):
        asyncio.run(take_snapshot(state))
        assert asked[KV_STATS.pattern] == num


def worker(name: str, host_id: str) -> WorkerStatus:
    return WorkerStatus(
        worker_id=WorkerId(name), host_id=HostId(host_id), state="ready", models=["m"]
    )


def test_status_shows_every_host_with_its_kvstore_and_workers() -> None:
    run = replace(STATE, host_id="h", num_hosts=2)
    snapshot = Snapshot(
        states={},
        scheduler=SchedulerStatus(workers=[worker("h-w0", "h"), worker("h-1-w0", "h-1")]),
        stores=[
            KvStats(
                host_id="h",
                num_sessions=1,
                disk_bytes=5 * MIB,
                disk_bytes_max=9 * MIB,
                arena_bytes_max={"256": 3 * MIB, "512": 4 * MIB},
            ),
        ],
    )
    report = describe(run, snapshot)
    shown = [(host["host_id"], host["has_kvstore"], host["workers"]) for host in report["hosts"]]
    assert shown == [("h", True, ["h-w0"]), ("h-1", False, ["h-1-w0"])]
    assert [host["disk"]["bytes"] for host in report["hosts"]] == [5 * MIB, 0]
    assert report["tiers"]["disk"]["bytes"] == 5 * MIB
    text = io.StringIO()
    Console(file=text, width=120).print(render(report))
    rows = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "h answers 0 of 7 MiB 5 of 9 MiB h-w0" in rows
    assert "h-1 away 0 of 0 MiB 0 of 0 MiB h-1-w0" in rows
    assert len(describe(run, None)["hosts"]) == 2


def test_status_shows_how_often_hints_are_right_and_whose_are_refused() -> None:
    tenant = TenantId("team[a]")
    tracker = HintStatus(num_live=3, rates=[HintRate(tenant=tenant, hits=0.25, num_hints=40.0)])
    refused = Throttled(tenant=tenant, place="10.0.0.7", retry_after_s=1.0, num_refused=1234)
    frontend = HintStatus(throttled=[refused])
    snapshot = Snapshot(states={}, scheduler=None, stores=[], hints=[tracker, frontend])
    report = describe(STATE, snapshot)
    assert report["hints"]["live"] == 3
    assert report["hints"]["rates"] == [{"tenant": tenant, "hits": 0.25, "num_hints": 40.0}]
    assert report["hints"]["throttled"][0]["place"] == "10.0.0.7"
    text = io.StringIO()
    Console(file=text, width=120).print(render(report))
    rows = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "team[a] 40 lately 25%" in rows
    assert "team[a] from 10.0.0.7: 1,234 refused" in rows


def test_what_the_shards_of_a_tracker_know_is_summed() -> None:
    a, b = TenantId("a"), TenantId("b")
    first = HintStatus(num_live=3, rates=[HintRate(tenant=a, hits=0.5, num_hints=30.0)])
    rates = [
        HintRate(tenant=b, hits=1.0, num_hints=5.0),
        HintRate(tenant=a, hits=0.9, num_hints=10),
    ]
    second = HintStatus(num_live=4, rates=rates)
    snapshot = Snapshot(states={}, scheduler=None, stores=[], hints=[first, second])
    hints = describe(STATE, snapshot)["hints"]
    assert hints["live"] == 7
    assert hints["rates"] == [
        {"tenant": "a", "hits": 0.6, "num_hints": 40.0},
        {"tenant": "b", "hits": 1.0, "num_hints": 5.0},
    ]


def test_a_host_that_is_not_ours_is_shown_behind_ours() -> None:
    stores = [KvStats(host_id="a", num_sessions=0), KvStats(host_id="h", num_sessions=0)]
    snapshot = Snapshot(states={}, scheduler=None, stores=stores)
    report = describe(replace(STATE, host_id="h"), snapshot)
    assert [host["host_id"] for host in report["hosts"]] == ["h", "a"]
