"""Options checked and turned into children."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from cli.start.options import DeploymentOptions
from cli.start.plan import check_data_dir, check_port, plan_deployment
from cli.start.servers import prepare_servers
from shared.errors import ConfigError
from shared.ids import DEFAULT_TENANT
from shared.private import make_private
from shared.runtime.urls import check_redis_url, hide_password


def test_own_servers_come_first_and_given_ones_are_not_started(tmp_path: Path) -> None:
    own = plan_deployment(DeploymentOptions(data_dir=tmp_path, num_workers=2), 4001, {})
    assert [child.name for child in own.servers] == ["nats", "redis"]
    assert [child.name for child in own.services] == [
        "kvstore", "scheduler", "tracker", "worker-0", "worker-1", "frontend",
    ]  # fmt: skip
    assert own.nats_url == "nats://127.0.0.1:4001"
    given = plan_deployment(
        DeploymentOptions(data_dir=tmp_path, nats_url="nats://n:1", redis_url="redis://r:2/0"),
        1,
        {},
    )
    assert given.servers == []
    assert (given.nats_url, given.redis_url) == ("nats://n:1", "redis://r:2/0")


def test_the_edge_stops_first_and_the_servers_last(tmp_path: Path) -> None:
    plan = plan_deployment(DeploymentOptions(data_dir=tmp_path), 1, {})
    stages = {child.name: child.stop_stage for child in (*plan.servers, *plan.services)}
    order = sorted(stages, key=lambda name: stages[name])
    assert order[:5] == ["frontend", "tracker", "scheduler", "worker-0", "kvstore"]


def test_services_learn_everything_from_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def record(command: list[str], *, log_path: Path, env: dict[str, str]) -> None:
        started.append((command, env))

    monkeypatch.setattr("cli.start.plan.start_child", record)
    options = DeploymentOptions(
        data_dir=tmp_path, models=("/m/a", "b/c"), num_workers=2, emulate="zero", port=99
    )
    for child in plan_deployment(
        options, 1, {"HOME": "/h", "SYMPHONY_LOG_LEVEL": "debug"}
    ).services:
        child.start()
    by_module = {(command[-1], env["SYMPHONY_INSTANCE"]): env for command, env in started}
    worker = by_module["services.worker", "1"]
    assert json.loads(worker["SYMPHONY_MODELS"]) == ["/m/a", "b/c"]
    assert worker["SYMPHONY_EMULATE"] == "zero"
    assert worker["SYMPHONY_LOG_LEVEL"] == "debug"
    assert by_module["services.frontend", "0"]["SYMPHONY_HTTP_PORT"] == "99"
    assert json.loads(by_module["services.frontend", "0"]["SYMPHONY_DEPLOYED_MODELS"]) == ["zero"]
    assert len({env["SYMPHONY_HOST_ID"] for _, env in started}) == 1


@pytest.mark.parametrize(
    ("options", "environment", "names"),
    [
        ({"models": ("/m/llama.gguf", "b/c")}, {}, ["llama", "b/c"]),
        ({}, {"SYMPHONY_MODELS": '["b/c", "demo"]'}, ["b/c", "symphony-demo"]),
        ({}, {}, ["symphony-demo"]),
        ({"emulate": "zoo-a100:ResNet50,zero"}, {}, ["zero", "ResNet50"]),
        ({"num_workers": 0}, {}, None),
        ({"emulate": "nothing"}, {}, None),
        ({}, {"SYMPHONY_MODELS": "?"}, None),
        ({"emulate": "zero"}, {"SYMPHONY_DEPLOYED_MODELS": '["x"]'}, ["x"]),
    ],
)
def test_the_frontend_learns_which_models_are_deployed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    environment: dict[str, str],
    names: list[str] | None,
) -> None:
    started: dict[str, dict[str, str]] = {}

    def record(command: list[str], *, log_path: Path, env: dict[str, str]) -> None:
        started[command[-1]] = env

    monkeypatch.setattr("cli.start.plan.start_child", record)
    for child in plan_deployment(
        DeploymentOptions(data_dir=tmp_path, **options), 1, environment
    ).services:
        child.start()
    given = started["services.frontend"].get("SYMPHONY_DEPLOYED_MODELS")
    assert (given and json.loads(given)) == names


def test_deployments_on_other_folders_have_other_hosts(tmp_path: Path) -> None:
    one, two = (DeploymentOptions(data_dir=tmp_path / name) for name in "ab")
    assert one.host_id != two.host_id
    assert one.host_id == DeploymentOptions(data_dir=tmp_path / "a", port=1).host_id


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_url_is_reachable_from_here(tmp_path: Path, host: str, url: str) -> None:
    assert DeploymentOptions(data_dir=tmp_path, host=host, port=80).url == url


def test_a_data_folder_without_room_or_rights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_data_dir(tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())
    monkeypatch.setattr("cli.start.plan.FREE_BYTES_MIN", 1 << 62)
    with pytest.raises(ConfigError, match="disk is full"):
        check_data_dir(tmp_path / "new")
    with pytest.raises(ConfigError, match="/proc/none"):
        check_data_dir(Path("/proc/none"))
    monkeypatch.undo()
    for mode in (0o777, 0o1777):
        (tmp_path / "new").chmod(mode)
        with pytest.raises(ConfigError, match="anybody may write to it"):
            check_data_dir(tmp_path / "new")
    (tmp_path / "new").chmod(0o775)
    check_data_dir(tmp_path / "new")


def test_workers_have_a_port_of_metrics_each(tmp_path: Path) -> None:
    def ports(given: dict[str, str]) -> set[tuple[str, str]]:
        plan = plan_deployment(DeploymentOptions(data_dir=tmp_path, num_workers=2), 1, given)
        found = {child.name: child.environment["SYMPHONY_METRICS_PORT"] for child in plan.services}
        return {(name, port) for name, port in found.items() if port != "0"}

    assert ports({}) == set()
    assert ports({"SYMPHONY_METRICS_PORT": "0"}) == set()
    assert ports({"SYMPHONY_METRICS_PORT": "9100"}) == {("worker-0", "9100"), ("worker-1", "9101")}
    assert ("worker-1", "http") in ports({"SYMPHONY_METRICS_PORT": "http"}), "they refuse it"


def test_a_taken_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own = rf"--port {port}: cannot listen on .* in use by .* \(process {os.getpid()}\)"
        with pytest.raises(ConfigError, match=own):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("option", "setting"),
    [("allow_hosts", "SYMPHONY_ALLOW_HOSTS"), ("cors_origins", "SYMPHONY_CORS_ORIGINS")],
)
def test_who_may_come_is_said_by_the_option_or_the_setting(
    option: str, setting: str, tmp_path: Path
) -> None:
    def named(*given: str) -> str:
        options = DeploymentOptions(data_dir=tmp_path, **{option: given})  # type: ignore[arg-type]
        plan = plan_deployment(options, 1, {setting: '["a"]'})
        return plan.services[-1].environment[setting]

    assert json.loads(named()) == ["a"]
    assert json.loads(named("b", "c")) == ["b", "c"]


def test_a_long_data_folder_s_socket_is_elsewhere_and_goes_with_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    near = DeploymentOptions(data_dir=Path("/d"))
    assert near.redis_socket == Path("/d/redis/redis.sock")
    far = DeploymentOptions(data_dir=tmp_path / ("x" * 100))
    assert far.redis_socket.parent.parent == tmp_path
    assert far.redis_socket != DeploymentOptions(data_dir=tmp_path / ("y" * 100)).redis_socket
    make_private(far.redis_socket.parent, "Redis' socket")
    far.redis_socket.touch()
    far.remove_socket()
    assert not far.redis_socket.parent.exists()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("z" * 100)))
    (tmp_path / ("x" * 100)).mkdir()
    with pytest.raises(ConfigError, match="too long a path for Redis' socket: set TMPDIR"):
        prepare_servers(far, 1, [DEFAULT_TENANT], 2**30)


def test_no_secret_is_in_an_address_or_a_command_line(tmp_path: Path) -> None:
    options = DeploymentOptions(data_dir=tmp_path / "a@b c")
    prepare_servers(options, 1, [DEFAULT_TENANT], 2**30)
    password = (options.credentials_dir / "redis.password").read_text().strip()
    plan = plan_deployment(options, 1, {})
    assert hide_password(plan.redis_url) == plan.redis_url
    assert check_redis_url(plan.redis_url)
    assert password not in str(plan.environment)


def test_a_divided_tracker_has_a_process_a_shard_and_all_know_how_many(tmp_path: Path) -> None:
    def trackers(num_shards: int, num_spares: int) -> list[tuple[str, str | None, str]]:
        options = DeploymentOptions(
            data_dir=tmp_path, num_tracker_shards=num_shards, num_spares=num_spares
        )
        children = plan_deployment(options, 1, {}).services
        assert {child.environment["SYMPHONY_TRACKER_SHARDS"] for child in children} == {
            str(num_shards)
        }
        return [
            (child.name, env.get("SYMPHONY_TRACKER_SHARD"), env["SYMPHONY_INSTANCE"])
            for child in children
            if child.service == "tracker" and (env := child.environment)
        ]

    assert trackers(1, 1) == [("tracker", None, "0"), ("tracker-spare-0", None, "spare-0")]
    assert trackers(2, 1) == [
        ("tracker-shard-0", "0", "shard-0"),
        ("tracker-shard-1", "1", "shard-1"),
        ("tracker-shard-0-spare-0", "0", "shard-0-spare-0"),
        ("tracker-shard-1-spare-0", "1", "shard-1-spare-0"),
    ]
