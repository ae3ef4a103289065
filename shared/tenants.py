"""Whose a message is: told by the subject that it came on, never by itself."""

from shared.errors import InvalidRequest, WrongTenant
from shared.ids import DEFAULT_TENANT, TenantId, tenant_of_token


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


def own_tenant(tenant: TenantId, named: TenantId) -> TenantId:
    """`tenant`, whose credentials a message came with. One that names none names the default.

    Raises:
        WrongTenant: the message names another.
    """
    if named not in (DEFAULT_TENANT, tenant):
        raise WrongTenant(tenant)
    return tenant
