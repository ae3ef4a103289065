"""Small files of the data folder, damaged in any way: the start goes on, or names the file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.base.runfile import RunState, is_locked, read_run_state, take_lock, write_run_state
from cli.start.options import DeploymentOptions
from cli.start.servers import prepare_servers
from shared.errors import ConfigError
from shared.ids import DEFAULT_TENANT

REDIS_BYTES = 4 * 1024**2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def as_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent.parent / "elsewhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "garbage": lambda path: path.write_bytes(b"\x80\xff garbage\n" * 9),
    "zeros": lambda path: path.write_bytes(bytes(100)),
    "words": lambda path: path.write_text('two words\nmaxmemory "1'),
    "folder": as_folder,
    "link": as_link,
}
FILES = (
    "credentials/peers.secret",
    "credentials/redis.password",
    "credentials/services.nk",
    "credentials/tenant-default.nk",
    "nats/nats.conf",
    "redis/redis.conf",
    "run.json",
    "run.json.new",
    "run.lock",
)
WRITTEN_ANEW = ("nats/nats.conf", "redis/redis.conf", "run.json", "run.json.new")


def start(data_dir: Path) -> None:
    """As much of a start as reads and writes these files."""
    state = RunState(
        pid=1, state="ready", url="", nats_url="", redis_url="", host_id="h", num_workers=1,
        services=[],
    )  # fmt: skip
    read_run_state(data_dir)
    is_locked(data_dir)
    lock = take_lock(data_dir)
    try:
        prepare_servers(DeploymentOptions(data_dir=data_dir), 1, [DEFAULT_TENANT], REDIS_BYTES)
        write_run_state(data_dir, state)
        assert read_run_state(data_dir) == state
    finally:
        os.close(lock)


def refusal(data_dir: Path) -> ConfigError | OSError | None:
    """Why it does not start, if it does not."""
    try:
        start(data_dir)
    except (ConfigError, OSError) as error:
        return error
    return None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_the_start_goes_on_or_names_the_file(tmp_path: Path, name: str, damage: str) -> None:
    data_dir, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data_dir.mkdir()
    elsewhere.write_text("another's")
    start(data_dir)
    path = data_dir / name
    path.touch()
    DAMAGES[damage](path)
    if isinstance(error := refusal(data_dir), ConfigError):
        assert name not in WRITTEN_ANEW and str(path) in error.message
        assert "remove it" in error.message
    elif error is not None:  # as `up` tells it
        assert damage in ("folder", "link") and error.filename and name in str(error.filename)
    else:
        config = (data_dir / "redis" / "redis.conf").read_text()
        (line,) = [each for each in config.splitlines() if each.startswith("requirepass ")]
        assert len(line.split()) == 2 and line.isprintable()
    assert elsewhere.read_text() == "another's", "links are not followed"
