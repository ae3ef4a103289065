"""The secrets of a house: made once, kept in files that only its owner can read."""

import os
import secrets
from pathlib import Path

from shared.access import read_secret
from shared.private import make_private

PASSWORD_BYTES = 32


def make_credentials(folder: Path) -> None:
    """Make what is not there yet.

    Raises:
        ConfigError: the folder is not this user's alone, or a file in it cannot be read.
        OSError: the disk is full.
    """
    make_private(folder, "credentials")
    _keep(redis_password_file(folder), secrets.token_urlsafe(PASSWORD_BYTES))


def redis_password_file(folder: Path) -> Path:
    """Where the password of the house's Redis is."""
    return folder / "redis.password"


def _keep(path: Path, fresh: str) -> str:
    """The secret in `path`, which is `fresh` if there was none. A file is there whole or not."""
    if not path.exists():
        temporary = path.with_name(f"{path.name}.new")
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "w") as file:
            file.write(f"{fresh}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    path.chmod(0o600)
    return read_secret(path, "credentials")
