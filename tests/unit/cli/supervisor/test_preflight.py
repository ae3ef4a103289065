"""What is refused before the first process starts."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.base.children import free_port
from cli.start.options import DeploymentOptions
from cli.start.plan import DeploymentPlan, plan_deployment
from cli.supervisor.preflight import (
    CONFIGS,
    check_addresses,
    check_machine,
    check_nats,
    check_settings,
)
from shared.errors import ConfigError
from shared.runtime.access import NatsAccess


def plan(tmp_path: Path, environ: dict[str, str], host: str = "127.0.0.1") -> DeploymentPlan:
    return plan_deployment(
        DeploymentOptions(data_dir=tmp_path, host=host, num_shards=2), 1, environ
    )


def test_the_defaults_can_start_and_every_service_is_looked_at(tmp_path: Path) -> None:
    deployment = plan(tmp_path, {})
    assert check_settings(deployment).log_bytes_max == 64 * 1024**2
    assert {child.service for child in deployment.services} == CONFIGS.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SYMPHONY_TURN_S_MAX", "soon"),
        ("SYMPHONY_ARENA_BYTES", "1000"),
        ("SYMPHONY_SCHEDULER_POLICY", "nonsense"),
        ("SYMPHONY_HINTS_PER_CLIENT", "-1"),
        ("SYMPHONY_ONESHOT_BATCH_MAX", "-1"),
        ("SYMPHONY_LOG_BYTES_MAX", "-1"),
        ("SYMPHONY_ENV_FILE", "/no/such/file"),
        ("SYMPHONY_SCHEDULER_POLIC", "balance"),
    ],
)
def test_a_wrong_setting_of_any_service_is_named(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(plan(tmp_path, {name: value}))
    assert caught.value.message.startswith(f"{name}={value!r}: ")


def test_listening_to_others_needs_keys_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SYMPHONY_HTTP_ADDRESS='0\.0\.0\.0': others can"):
        check_settings(plan(tmp_path, {}, "0.0.0.0"))
    check_settings(plan(tmp_path, {"SYMPHONY_ALLOW_ANONYMOUS": "1"}, "0.0.0.0"))
    keys = tmp_path / "keys.json"
    environ = {"SYMPHONY_API_KEYS_FILE": str(keys)}
    with pytest.raises(ConfigError, match=r"SYMPHONY_API_KEYS_FILE=.*No such file"):
        check_settings(plan(tmp_path, environ))
    keys.write_text(json.dumps([{"tenant": "a"}]))
    with pytest.raises(ConfigError, match=r"SYMPHONY_API_KEYS_FILE=.*entry 0"):
        check_settings(plan(tmp_path, environ))
    keys.write_text(json.dumps([{"key": "k", "tenant": "a"}]))
    check_settings(plan(tmp_path, environ, "0.0.0.0"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nats_url": "me:secret@host"}, "--nats-url '***@host': does not begin with nats://"),
        ({"redis_url": "redis://:secret@r:x"}, "--redis-url 'redis://***@r:x': the port is no"),
    ],
)
def test_malformed_addresses_name_their_option(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_addresses(DeploymentOptions(data_dir=tmp_path, **options))  # type: ignore[arg-type]
    assert caught.value.message.startswith(words)
    assert "secret" not in caught.value.message


def test_a_port_of_a_setting_that_is_taken_is_named(tmp_path: Path) -> None:
    options = DeploymentOptions(data_dir=tmp_path, port=free_port())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in (("METRICS_PORT", port), ("PEER_LISTEN", f"127.0.0.1:{port}")):
            environ = {f"SYMPHONY_{name}": str(value), "SYMPHONY_PEER_SECRET_FILE": "/a/secret"}
            with pytest.raises(ConfigError, match=f"SYMPHONY_{name} {port}: cannot listen"):
                check_machine(plan_deployment(options, 1, environ), options)
        with pytest.raises(ConfigError, match=f"--port {port}: "):
            check_machine(plan_deployment(options, 1, {}), replace(options, port=port))


def test_shared_memory_without_room_for_the_arena_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> SimpleNamespace:
        return SimpleNamespace(total=1 << 30, free=1 << 20)

    options = DeploymentOptions(data_dir=tmp_path, port=free_port())
    check_machine(plan_deployment(options, 1, {}), options)
    monkeypatch.setattr("services.kvstore.room.shutil", SimpleNamespace(disk_usage=full))
    with pytest.raises(ConfigError, match=r"SYMPHONY_ARENA_DIR=.*a host needs at least"):
        check_machine(plan_deployment(options, 1, {}), options)


def test_a_nats_that_is_not_there_is_waited_for_only_so_long() -> None:
    port = free_port()
    with pytest.raises(ConfigError) as caught:
        check_nats(f"nats://127.0.0.1:{port}", NatsAccess(), patience_s=0.2)
    assert caught.value.message == (
        f"--nats-url: NATS at nats://127.0.0.1:{port} did not answer within 0.2 s: "
        "Connection refused"
    )
