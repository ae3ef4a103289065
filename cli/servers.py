"""What the servers of a house are told: their configurations, written before they start."""

from pathlib import Path

from cli.credentials import make_credentials, redis_password_file
from cli.plan import HouseOptions
from shared.access import read_secret
from shared.private import check_private, make_new, make_private

PRIVATE = 0o700


def prepare_servers(options: HouseOptions, redis_bytes_max: int) -> None:
    """Credentials and configurations of those servers that the house starts itself.

    Raises:
        ConfigError: a folder for them is not this user's alone.
        OSError: the disk is full.
    """
    if options.redis_url is None:
        make_credentials(options.credentials_dir)
        folder = _folder(options.data_dir / "redis")
        make_private(options.redis_socket.parent, "Redis' socket")
        password = read_secret(redis_password_file(options.credentials_dir), "credentials")
        listening = f"unixsocket {_quoted(options.redis_socket)}\nunixsocketperm 700\nport 0\n"
        text = listening + redis_config(folder, password, redis_bytes_max)
        write_private(folder / "redis.conf", text)


def redis_config(folder: Path, password: str, bytes_max: int) -> str:
    """Everything of a ``redis.conf`` but where it listens.

    Args:
        folder: for its data.
        bytes_max: what it may hold. Beyond that it forgets what has an end anyway, the longest
            unused first: session records, and what of the block index is published again.
    """
    return (
        f"dir {_quoted(folder)}\n"
        "daemonize no\n"
        "appendonly yes\n"
        'save ""\n'
        f"requirepass {password}\n"
        f"maxmemory {bytes_max}\n"
        "maxmemory-policy volatile-lru\n"
        # It looks at so many keys for the oldest: what was just written, as that a session was
        # deleted, is not to go before what is old.
        "maxmemory-samples 10\n"
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in place of the one there."""
    with open(make_new(path), "w") as file:
        file.write(text)


def _folder(path: Path) -> Path:
    """A server's folder: closed to others, also if an earlier release left it open."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(PRIVATE)
    check_private(path, "data folder")
    return path


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
