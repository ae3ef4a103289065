"""The servers as `up` configures them, and those it is given: who gets in. What Redis forgets."""

import asyncio
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, OutOfMemoryError

from cli import setup_servers
from cli.base.children import (
    find_nats_server,
    free_port,
    is_listening,
    start_nats_by,
    start_redis_by,
    stop_child,
)
from cli.start.options import DeploymentOptions
from cli.start.plan import plan_deployment
from cli.start.servers import prepare_servers
from cli.supervisor.asker import answers_at
from cli.supervisor.preflight import check_nats, open_servers
from loadtest.deployment import wait_until
from loadtest.servers import wait_for_port
from shared.errors import ConfigError
from shared.ids import DEFAULT_TENANT
from shared.runtime.access import NatsAccess, RedisAccess
from tests.conftest import Server

REDIS_BYTES = 4 * 1024**2
RECORD = b"x" * 10_000


@pytest.fixture
def options(tmp_path: Path) -> DeploymentOptions:
    return DeploymentOptions(data_dir=tmp_path / 'a "house"')


@pytest.fixture
def own_redis(options: DeploymentOptions) -> Iterator["Popen[bytes]"]:
    prepare_servers(options, 1, [DEFAULT_TENANT], REDIS_BYTES)
    folder = options.data_dir / "redis"
    child = start_redis_by(folder / "redis.conf", log_path=folder / "redis.log")
    wait_until(lambda: is_listening(options.redis_socket), "Redis listens")
    yield child
    stop_child(child)


def url_of(options: DeploymentOptions) -> str:
    return plan_deployment(options, 1, {}).redis_url


def access_of(options: DeploymentOptions) -> RedisAccess:
    return RedisAccess(password_file=options.credentials_dir / "redis.password")


@pytest.mark.usefixtures("own_redis")
def test_only_who_knows_the_password_gets_into_redis(options: DeploymentOptions) -> None:
    with (
        Redis.from_url(url_of(options)) as nobody,
        pytest.raises(AuthenticationError, match="authenticate"),
    ):
        nobody.ping()
    with Redis.from_url(url_of(options), **access_of(options).options("")) as owner:
        assert owner.ping()
    assert asyncio.run(answers_at(url_of(options), 5.0))  # as its supervisor asks
    assert stat.S_IMODE(options.redis_socket.stat().st_mode) == 0o700


@pytest.mark.usefixtures("own_redis")
def test_a_full_redis_refuses_what_comes_and_forgets_nothing(options: DeploymentOptions) -> None:
    with Redis.from_url(url_of(options), **access_of(options).options("")) as redis:
        redis.set("session", RECORD, ex=3600)
        redis.set("lasting", RECORD)
        with pytest.raises(OutOfMemoryError):
            fill(redis)
        assert redis.get("session") == redis.get("lasting") == RECORD
        assert redis.delete("session:0") == 1, "what is deleted makes room"


def fill(redis: Redis) -> None:
    """Until it takes no more."""
    for number in range(10_000):
        redis.set(f"session:{number}", RECORD, ex=3600)


def test_secrets_are_made_once_and_for_their_owner_alone(options: DeploymentOptions) -> None:
    (options.data_dir / "redis").mkdir(parents=True, mode=0o755)
    old = os.umask(0)
    try:
        prepare_servers(options, 1, [DEFAULT_TENANT], REDIS_BYTES)
    finally:
        os.umask(old)
    folders = [options.credentials_dir, options.data_dir / "redis"]
    files = [options.credentials_dir / "redis.password", options.data_dir / "redis" / "redis.conf"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in folders] == [0o700] * len(folders)
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * len(files)
    before = [path.read_text() for path in files]
    files[0].chmod(0o644)
    prepare_servers(options, 1, [DEFAULT_TENANT], REDIS_BYTES)
    assert [path.read_text() for path in files] == before
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


def test_servers_that_let_anybody_in_are_told_of(
    nats_server: Server, redis_server: Server, options: DeploymentOptions
) -> None:
    given = replace(options, nats_url=nats_server.url, redis_url=redis_server.url)
    warnings = open_servers(given, plan_deployment(given, 1, {}))
    assert [line.partition(":")[0] for line in warnings] == ["--nats-url", "--redis-url"]
    assert open_servers(options, plan_deployment(options, 1, {})) == []  # our own do not


@pytest.mark.usefixtures("own_redis")
def test_servers_that_ask_who_connects_are_not_told_of(
    options: DeploymentOptions, tmp_path: Path
) -> None:
    port, config = free_port(), tmp_path / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{port}\nauthorization: {{ user: me, password: secret }}\n"
    )
    child = start_nats_by(config, log_path=tmp_path / "nats.log")
    try:
        wait_for_port(child, port, "nats")
        password = (options.credentials_dir / "redis.password").read_text().strip()
        redis_url = url_of(options).replace("unix://", f"unix://:{password}@")
        nats_url = f"nats://me:secret@127.0.0.1:{port}"
        given = replace(options, nats_url=nats_url, redis_url=redis_url)
        assert open_servers(given, plan_deployment(given, 1, {})) == []
        wrong = replace(given, nats_url=nats_url.replace("secret", "guess"))
        with pytest.raises(ConfigError, match=r"^--nats-url: .*Authorization Violation") as caught:
            check_nats(wrong.nats_url or "", NatsAccess(), patience_s=3.0)
        assert "guess" not in caught.value.message
    finally:
        stop_child(child)


def test_credentials_are_not_kept_where_others_can_enter(options: DeploymentOptions) -> None:
    options.credentials_dir.mkdir(parents=True)
    options.credentials_dir.chmod(0o755)
    with pytest.raises(ConfigError, match="others may enter"):
        prepare_servers(options, 1, [DEFAULT_TENANT], REDIS_BYTES)


def test_containers_get_the_same_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = secrets, nats, redis = [tmp_path / name for name in ("secrets", "nats", "redis")]
    nats.mkdir()
    redis.mkdir()
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key": "k", "tenant": "acme"}]')
    monkeypatch.setenv("SYMPHONY_API_KEYS_FILE", str(keys))
    monkeypatch.setattr("sys.argv", ["setup_servers", *map(str, folders)])
    assert setup_servers.main() == 0
    assert {path.name for path in secrets.iterdir()} == {
        "peers.secret", "redis.password", "services.nk", "tenant-acme.nk", "tenant-default.nk",
    }  # fmt: skip
    command = [find_nats_server(), "-t", "-c", str(nats / "nats.conf")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    password = (secrets / "redis.password").read_text().strip()
    assert f"requirepass {password}\n" in (redis / "redis.conf").read_text()
    assert stat.S_IMODE((redis / "redis.conf").stat().st_mode) == 0o644  # another user reads it
    secrets.chmod(0o755)
    assert setup_servers.main() == 1
    assert "others may enter" in capsys.readouterr().err
