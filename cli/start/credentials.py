"""The secrets of a deployment: made once, kept in files that only its owner can read."""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nkeys

from shared.errors import ConfigError
from shared.ids import TenantId, tenant_token
from shared.private import make_private
from shared.runtime.access import read_secret, read_seed

PASSWORD_BYTES = 32
SEED_BYTES = 32
_PASSWORD = re.compile(r"[^\s\"'\\\x00-\x20\x7f-\U0010ffff]+")  # as it stands in redis.conf


def make_credentials(folder: Path, tenants: Iterable[TenantId]) -> None:
    """Make what is not there yet: for the services and for each of the tenants.

    Raises:
        ConfigError: the folder is not this user's alone, or a file in it is damaged.
        OSError: the disk is full.
    """
    make_private(folder, "credentials")
    with _saying_how_to_go_on():
        for path in (redis_password_file(folder), peers_secret_file(folder)):
            if not _PASSWORD.fullmatch(keep_secret(path, secrets.token_urlsafe(PASSWORD_BYTES))):
                raise ConfigError(f"credentials={str(path)!r}: holds no password of one word")
        seeds = services_nkey_file(folder), *(nkey_file(folder, tenant) for tenant in tenants)
        for path in seeds:
            keep_secret(path, _new_seed())
            read_seed(path, "credentials")


@contextmanager
def _saying_how_to_go_on() -> Iterator[None]:
    """A secret that is damaged is not replaced by itself: clients may have a copy."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error.message}; remove it, and the next start makes one") from None


def redis_password_file(folder: Path) -> Path:
    """Where the password of the deployment's Redis is."""
    return folder / "redis.password"


def peers_secret_file(folder: Path) -> Path:
    """Where the secret is that the deployment's kvstores share."""
    return folder / "peers.secret"


def services_nkey_file(folder: Path) -> Path:
    """Where the seed is with which the services connect to the deployment's NATS."""
    return folder / "services.nk"


def nkey_file(folder: Path, tenant: TenantId) -> Path:
    """Where the seed is with which a tenant connects to the deployment's NATS."""
    return folder / f"tenant-{tenant_token(tenant)}.nk"


def public_nkey(path: Path) -> str:
    """The public key of the seed in a file.

    Raises:
        ConfigError: there is none in it.
    """
    seed = read_seed(path, "credentials")
    key: bytes = nkeys.from_seed(bytearray(seed.encode())).public_key
    return key.decode()


def _new_seed() -> str:
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(SEED_BYTES), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def keep_secret(path: Path, fresh: str) -> str:
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
