"""API keys: the tenant of a request, and what it may do."""

import base64
import binascii
import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from services.frontend.config import FrontendConfig, PriorityRange
from services.frontend.core.limits.quotas import TenantLimits
from shared.errors import ConfigError, InvalidRequest, SymphonyError
from shared.expiry import EXPIRY_S_MAX
from shared.ids import DEFAULT_TENANT, TenantId

SCOPE_ADMIN = "admin"  # holds every other
SCOPE_ADAPTERS = "adapters"  # to add and remove one's own
SCOPE_INFERENCE = "inference"
SCOPE_METRICS = "metrics"


class Unauthenticated(SymphonyError):
    """No key, or an unknown one."""

    code = "invalid_api_key"
    http_status = 401


class Forbidden(SymphonyError):
    """The key's scopes do not cover this."""

    code = "insufficient_scope"
    http_status = 403


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    tenant: TenantId = DEFAULT_TENANT
    scopes: frozenset[str] = field(default_factory=lambda: frozenset({SCOPE_ADMIN}))


class _Limits(BaseModel):
    """What is not given is as for tenants without limits of their own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    turns: NonNegativeInt | None = None
    waiting_tokens: NonNegativeInt | None = None
    jobs: NonNegativeInt | None = None
    job_bytes: NonNegativeInt | None = None
    sessions: NonNegativeInt | None = None
    session_bytes: NonNegativeInt | None = None
    priority: PriorityRange | None = None
    kv_expiry_s: Annotated[int, Field(ge=0, le=EXPIRY_S_MAX)] | None = None
    kv_expiry_s_max: Annotated[int, Field(ge=0, le=EXPIRY_S_MAX)] | None = None


class _Key(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = None
    key_sha256: str | None = None
    tenant: str = DEFAULT_TENANT
    scopes: list[str] = [SCOPE_INFERENCE, SCOPE_METRICS]
    limits: _Limits | None = None

    def digest(self) -> str:
        if self.key_sha256 is not None:
            return self.key_sha256.lower()
        return _digest(self.key or "")


_KEYS = TypeAdapter(list[_Key])


class Keyring:
    """The keys that are known, by their SHA-256; without any, everyone is the default tenant.

    Attributes:
        limits: of tenants that have some of their own.
    """

    def __init__(
        self,
        callers: dict[str, Caller] | None,
        limits: Mapping[TenantId, TenantLimits] | None = None,
    ) -> None:
        self._callers = callers
        self.limits = limits or {}

    @property
    def is_open(self) -> bool:
        """Whether no keys are asked for."""
        return self._callers is None

    @property
    def has_several_tenants(self) -> bool:
        """Whether several tenants with keys share this frontend."""
        return len({caller.tenant for caller in (self._callers or {}).values()}) > 1

    @property
    def tenants(self) -> frozenset[TenantId]:
        """The tenants of all keys, and the default one."""
        callers = (self._callers or {}).values()
        return frozenset({DEFAULT_TENANT, *(caller.tenant for caller in callers)})

    def allows(self, tenant: TenantId, scope: str) -> bool:
        """Whether some key of the tenant's holds `scope`; without keys, always."""
        if self._callers is None:
            return True
        of_tenant = (each for each in self._callers.values() if each.tenant == tenant)
        return any({scope, SCOPE_ADMIN} & each.scopes for each in of_tenant)

    def named(self, tenant: str | None) -> TenantId:
        """The tenant of a request that came without credentials and may name one itself.

        Raises:
            InvalidRequest: it does, and keys are asked for.
        """
        if tenant is None:
            return DEFAULT_TENANT
        if not self.is_open:
            raise InvalidRequest("tenant: comes from the API key when keys are asked for", "tenant")
        return TenantId(tenant)

    def caller(self, authorization: str, scope: str, api_key: str = "") -> Caller:
        """The sender of this ``Authorization`` header: ``Bearer KEY``, or ``Basic`` with the key as
        the password, which is what a browser sends once its user was asked.

        Args:
            api_key: of ``X-Api-Key``, as Anthropic's clients send it. Where there is an
                ``Authorization`` too, that alone decides, right or wrong, so that no second key
                can change the tenant.

        Raises:
            Unauthenticated: no key, or an unknown one.
            Forbidden: a known one that does not hold `scope`.
        """
        if self._callers is None:
            return Caller()
        key = _key_of(authorization) if authorization else api_key.strip()
        if not key:
            raise Unauthenticated(
                "You didn't provide an API key: send `Authorization: Bearer KEY`, or `X-Api-Key: "
                "KEY`."
            )
        caller = self._callers.get(_digest(key))
        if caller is None:
            raise Unauthenticated("Incorrect API key provided.")
        if scope not in caller.scopes and SCOPE_ADMIN not in caller.scopes:
            raise Forbidden(f"this API key has no scope {scope!r}")
        return caller


def load_keyring(config: FrontendConfig) -> Keyring:
    """The keys of `config`'s file.

    Raises:
        ConfigError: the file is not there or wrong, or none is given though others can connect.
    """
    if config.api_keys_file is not None:
        return _read(config.api_keys_file, config.tenant_limits)
    if not config.allow_anonymous and not _is_loopback(config.http_address):
        raise ConfigError(
            f"SYMPHONY_HTTP_ADDRESS={config.http_address!r}: others can connect, so set "
            "SYMPHONY_API_KEYS_FILE, or SYMPHONY_ALLOW_ANONYMOUS=1"
        )
    return Keyring(None)


def _read(path: Path, default: TenantLimits) -> Keyring:
    where = f"SYMPHONY_API_KEYS_FILE={str(path)!r}"
    try:
        keys = _KEYS.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"{where}: entry {first['loc']}: {first['msg']}") from None
    for number, key in enumerate(keys):
        if not key.key and not key.key_sha256:
            raise ConfigError(f'{where}: entry {number}: give "key" or "key_sha256"')
    callers = {key.digest(): Caller(TenantId(key.tenant), frozenset(key.scopes)) for key in keys}
    return Keyring(callers, _own_limits(keys, default, where))


def _own_limits(
    keys: Sequence[_Key], default: TenantLimits, where: str
) -> dict[TenantId, TenantLimits]:
    """Limits of tenants of which an entry gives some; its other entries may leave them out.

    Raises:
        ConfigError: two entries of a tenant give different ones.
    """
    found: dict[TenantId, TenantLimits] = {}
    for number, key in enumerate(keys):
        if key.limits is None:
            continue
        tenant = TenantId(key.tenant)
        limits = replace(default, **key.limits.model_dump(exclude_none=True))
        if found.setdefault(tenant, limits) != limits:
            raise ConfigError(
                f'{where}: entry {number}: an earlier entry has other "limits" for the tenant '
                f"{key.tenant!r}"
            )
    return found


def _key_of(authorization: str) -> str | None:
    kind, _, value = authorization.partition(" ")
    value = value.strip()
    if kind.lower() == "bearer" and value:
        return value
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
