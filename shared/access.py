"""How a process gets onto NATS and Redis beyond their addresses: what proves who it is, and which
certificates it trusts. Only paths are held here: secrets stay in their files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Attributes:
    nkey_file: holds the seed of an nkey; None: the address says who we are, or nobody asks.
    """

    nkey_file: Path | None = None

    def options(self) -> dict[str, Any]:
        """Arguments for NATS' ``Client.connect`` beside the address.

        Raises:
            ConfigError: the seed's file cannot be read or holds none.
        """
        if self.nkey_file is None:
            return {}
        return {"nkeys_seed_str": read_seed(self.nkey_file, "SYMPHONY_NATS_NKEY_FILE")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAccess:
    """Attributes:
    password_file: holds the password; None: the address holds it, or there is none.
    """

    password_file: Path | None = None

    def options(self) -> dict[str, Any]:
        """Arguments for ``Redis.from_url`` beside the address.

        Raises:
            ConfigError: the password's file cannot be read.
        """
        if self.password_file is None:
            return {}
        return {"password": read_secret(self.password_file, "SYMPHONY_REDIS_PASSWORD_FILE")}


def read_seed(path: Path, name: str) -> str:
    """The seed of an nkey in a file.

    Raises:
        ConfigError: it cannot be read or is none; names the setting `name`, and quotes nothing.
    """
    import nkeys

    seed = read_secret(path, name)
    try:
        nkeys.from_seed(bytearray(seed.encode()))
    except (ValueError, nkeys.NkeysError):
        raise ConfigError(f"{name}={str(path)!r}: holds no seed of an nkey") from None
    return seed


def read_secret(path: Path, name: str) -> str:
    """What a secret's file holds.

    Raises:
        ConfigError: it cannot be read or is empty; names the setting `name`, and quotes nothing.
    """
    try:
        text = path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name}={str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}={str(path)!r}: no text") from None
    if not text:
        raise ConfigError(f"{name}={str(path)!r}: the file is empty")
    return text
