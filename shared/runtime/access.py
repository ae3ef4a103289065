"""How a process gets onto NATS and Redis beyond their addresses: what proves who it is, and which
certificates it trusts. Only paths are held here: secrets stay in their files.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Attributes:
    nkey_file: holds the seed of an nkey; None: the address identifies us, or nothing does.
    ca_file: certificates that the server's is to come from; None: those that the machine trusts.
    """

    nkey_file: Path | None = None
    ca_file: Path | None = None

    def options(self) -> dict[str, Any]:
        """Arguments for NATS' ``Client.connect`` beside the address.

        Raises:
            ConfigError: a file cannot be read, or does not hold what it should.
        """
        options: dict[str, Any] = {}
        if self.nkey_file is not None:
            options["nkeys_seed_str"] = read_seed(self.nkey_file, "SYMPHONY_NATS_NKEY_FILE")
        if self.ca_file is not None:
            options["tls"] = trusting(self.ca_file, "SYMPHONY_NATS_CA_FILE")
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAccess:
    """Attributes:
    password_file: holds the password; None: the address holds it, or there is none.
    ca_file: certificates that the server's is to come from, if the address is ``rediss://``; None:
        those that the machine trusts.
    """

    password_file: Path | None = None
    ca_file: Path | None = None

    def options(self, url: str) -> dict[str, Any]:
        """Arguments for ``Redis.from_url`` beside the address `url`.

        Raises:
            ConfigError: a file cannot be read, or does not hold what it should.
        """
        options: dict[str, Any] = {}
        if self.password_file is not None:
            options["password"] = read_secret(self.password_file, "SYMPHONY_REDIS_PASSWORD_FILE")
        if self.ca_file is not None and url.startswith("rediss:"):
            trusting(self.ca_file, "SYMPHONY_REDIS_CA_FILE")
            options["ssl_ca_certs"] = str(self.ca_file)
        return options


def trusting(ca_file: Path, name: str) -> ssl.SSLContext:
    """What a client of TLS needs that trusts the certificates in a file, and no others.

    Raises:
        ConfigError: there are none; names the setting `name`.
    """
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except ssl.SSLError:
        raise ConfigError(f"{name}={str(ca_file)!r}: holds no certificate") from None
    except OSError as error:
        raise ConfigError(f"{name}={str(ca_file)!r}: {error.strerror}") from None


def serving(cert_file: Path, key_file: Path, name: str) -> ssl.SSLContext:
    """What a server of TLS needs.

    Raises:
        ConfigError: the files do not hold a certificate and its key; names the setting `name`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_file, key_file)
    except ssl.SSLError:
        raise ConfigError(f"{name}={str(cert_file)!r}: no certificate with this key") from None
    except OSError as error:
        raise ConfigError(f"{name}={str(cert_file)!r}: {error.strerror}") from None
    return context


def trusting_only(cert_file: Path) -> ssl.SSLContext:
    """What a client on the same machine needs that connects to a server of ours, by whatever
    address: the server has the key of this certificate.

    Raises:
        ConfigError: there is none.
    """
    context = trusting(cert_file, "SYMPHONY_HTTP_CERT_FILE")
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


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
