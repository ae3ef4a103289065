"""Whose a message is: told by the subject that it came on, never by itself."""

from shared.errors import InvalidRequest, WrongTenant
from shared.ids import DEFAULT_TENANT, TenantId, tenant_of_token, tenant_token


def tenant_of(pattern: str, subject: str) -> TenantId:
    """The tenant that stands in `subject` for the star in `pattern`.

    Raises:
        InvalidRequest: no tenant does.
    """
    before, _, after = pattern.partition("*")
    try:
        return tenant_of_token(subject.removeprefix(before).removesuffix(after))
    except ValueError as error:
        raise InvalidRequest(str(error), "tenant") from None


def subject_of(pattern: str, tenant: TenantId | None) -> str:
    """The subject of one tenant's messages; of all tenants', if none is given.

    >>> subject_of("symphony.tenant.*.adapter.get", TenantId("acme"))
    'symphony.tenant.acme.adapter.get'
    """
    return pattern if tenant is None else pattern.replace("*", tenant_token(tenant))


def own_tenant(tenant: TenantId, named: TenantId) -> TenantId:
    """`tenant`, whose credentials a message came with. One that names none names the default.

    Raises:
        WrongTenant: the message names another.
    """
    if named not in (DEFAULT_TENANT, tenant):
        raise WrongTenant(tenant)
    return tenant
