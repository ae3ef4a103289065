"""Damaged data of the deployment's own servers: they start with what can be read, or without."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from cli.base.children import free_port, is_listening, stop_child
from cli.start import server_data
from cli.start.server_data import DataRescue, ServerData, nats_data, redis_data
from loadtest.servers import start_nats, start_redis

NUM_KEYS = 200
PATIENCE_S = 30.0


def cut_tail(data: bytearray) -> None:
    del data[-100:]


def zero_tail(data: bytearray) -> None:
    data[-1000:] = bytes(1000)


def zeros_within(data: bytearray) -> None:
    data[len(data) - 4000 : len(data) - 3000] = bytes(1000)


def flip_head(data: bytearray) -> None:
    data[len(data) // 10] ^= 0xFF


def unknown_command(data: bytearray) -> None:
    """What a check of the format does not see."""
    at = data.rindex(b"SET")
    data[at : at + 3] = b"XET"


def cut_head(data: bytearray) -> None:
    del data[: len(data) // 10]


def empty(data: bytearray) -> None:
    data.clear()


def garbage(data: bytearray) -> None:
    data[:] = b"\x80garbage\r\n" * 1000


DAMAGES = {
    each.__name__: each
    for each in (
        cut_tail, zero_tail, zeros_within, flip_head, unknown_command, cut_head, empty, garbage,
    )
}  # fmt: skip
SAVED = ("cut_tail", "zero_tail", "zeros_within")  # nearly all


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Redis, whose file has a part that was rewritten and one that was appended."""
    folder, port = tmp_path_factory.mktemp("written"), free_port()
    child = start_redis(port, folder)
    with Redis(port=port, retry=Retry(NoBackoff(), 0)) as redis:
        wait_until_loaded(child, redis)
        for number in range(NUM_KEYS):
            redis.set(f"before:{number}", "x" * 50)
        redis.bgrewriteaof()
        wait(lambda: not redis.info("persistence")["aof_rewrite_in_progress"])
        wait(lambda: not redis.info("persistence")["aof_rewrite_scheduled"])
        for number in range(NUM_KEYS):
            redis.set(f"after:{number}", "x" * 50)
    stop_child(child)
    return folder


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_loaded(child: "Popen[bytes]", redis: "Redis") -> bool:
    """Whether it has read its data, and did not end over that."""
    while child.poll() is None:
        try:
            redis.ping()
        except RedisError:
            time.sleep(0.01)
        else:
            return True
    return False


class Server:
    """A server that is started again as its supervisor does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "redis.log"
        self.rescue = DataRescue("redis", redis_data(folder), self.log)
        self.said: list[str] = []

    def start(self) -> int:
        """Returns how many keys it has."""
        with Redis(port=self.port, retry=Retry(NoBackoff(), 0)) as redis:
            while True:
                self.rescue.on_started()
                self.child = start_redis(self.port, self.folder, log_path=self.log)
                if wait_until_loaded(self.child, redis):
                    return int(redis.dbsize())
                said = self.rescue.on_exit(self.child.returncode)
                assert said is not None and len(self.said) < 2, self.log.read_text()
                self.said.append(said)

    @property
    def asides(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{server_data.ASIDE}*"))


@pytest.fixture
def server(written: Path, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "redis"
    shutil.copytree(written, folder)
    server = Server(folder)
    yield server
    stop_child(server.child)


def data_file(folder: Path) -> Path:
    """What was written last; of Redis 7 one of several parts."""
    parts = sorted(folder.glob("appendonlydir/*.incr.aof"))
    return parts[-1] if parts else folder / "appendonly.aof"


@pytest.mark.parametrize("damage", DAMAGES)
def test_redis_starts_on_a_damaged_file(server: Server, damage: str) -> None:
    path = data_file(server.folder)
    data = bytearray(path.read_bytes())
    DAMAGES[damage](data)
    path.write_bytes(data)
    num_keys = server.start()
    if damage == "empty":
        assert not num_keys and not server.asides
        return
    if damage in SAVED:
        assert 2 * NUM_KEYS - 50 < num_keys < 2 * NUM_KEYS
    else:
        assert not num_keys
    if damage == "cut_tail":  # Redis does this by itself, and only logs it
        assert not server.said and "is lost" in (server.rescue.notice() or "")
        return
    assert len(server.said) == 1 and "session records" in server.said[0]
    (aside,) = server.asides
    assert str(aside) in server.said[0]
    kept = aside / path.name if aside.is_dir() else aside
    assert kept.read_bytes() == bytes(data)
    assert server.rescue.on_exit(1) is None, "it was ready: this is about something else"


def test_a_folder_in_place_of_the_file_is_set_aside(server: Server) -> None:
    path = data_file(server.folder)
    path.unlink()
    path.mkdir()
    server.start()
    assert len(server.said) == 1 and len(server.asides) == 1


def test_what_was_set_aside_before_does_not_pile_up(server: Server) -> None:
    for number in range(5):
        (server.folder / f"appendonly.aof{server_data.ASIDE}2000010{number}T000000").write_text("")
    path = server.folder / "appendonly.aof"
    path.write_bytes(b"garbage")
    server.start()
    assert len(list(server.folder.glob(f"appendonly.aof{server_data.ASIDE}*"))) == (
        server_data.ASIDE_MAX
    )


def test_data_of_a_server_that_does_not_start_without_it_either_stays(tmp_path: Path) -> None:
    """As where its configuration is wrong, or its socket is another one's."""
    (tmp_path / "appendonly.aof").write_bytes(b"data")
    rescue = DataRescue("redis", redis_data(tmp_path), tmp_path / "redis.log")
    for _ in range(2):
        rescue.on_started()
        said = rescue.on_exit(1)
        if said is None:
            break
        (tmp_path / "appendonly.aof").write_bytes(b"new")
    assert (tmp_path / "appendonly.aof").read_bytes() == b"data"
    assert list(tmp_path.iterdir()) == [tmp_path / "appendonly.aof"]
    assert rescue.on_exit(1) is None


@pytest.mark.parametrize("code", [0, -signal.SIGKILL, -signal.SIGTERM])
def test_a_server_that_was_killed_says_nothing_about_its_data(tmp_path: Path, code: int) -> None:
    (tmp_path / "appendonly.aof").write_bytes(b"garbage")
    assert DataRescue("redis", redis_data(tmp_path), tmp_path / "log").on_exit(code) is None


def test_nothing_is_done_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_data, "FREE_BYTES_MIN", 1 << 62)
    (tmp_path / "appendonly.aof").write_bytes(b"garbage")
    assert DataRescue("redis", redis_data(tmp_path), tmp_path / "log").on_exit(1) is None
    assert (tmp_path / "appendonly.aof").exists()


def test_an_earlier_life_s_log_says_nothing(tmp_path: Path) -> None:
    data = ServerData(folder=tmp_path, names=("d",), lost="x", ready=b"ready", notices=(b"lost",))
    (tmp_path / "d").touch()
    (tmp_path / "log").write_bytes(b"ready, lost\n")
    rescue = DataRescue("x", data, tmp_path / "log")
    rescue.on_started()
    assert rescue.notice() is None
    assert rescue.on_exit(1) is not None


def test_nats_starts_without_a_store_that_is_none(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "nats.log"
    (tmp_path / "jetstream").write_text("no folder")
    rescue = DataRescue("nats", nats_data(tmp_path), log)
    rescue.on_started()
    child = start_nats(port, tmp_path, log_path=log)
    assert "leases" in (rescue.on_exit(child.wait()) or "")
    rescue.on_started()
    child = start_nats(port, tmp_path, log_path=log)
    try:
        wait(lambda: is_listening(port))
        assert (tmp_path / "jetstream").is_dir()
    finally:
        stop_child(child)
