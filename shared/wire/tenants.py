"""Which tenant sent a message: its subject says that, never its content."""

from shared.errors import InvalidRequest, WrongTenant
from shared.ids import DEFAULT_TENANT, TenantId, tenant_of_token, tenant_token
from shared.wire.subjects import TENANT_INFERENCE_SUBMIT, TENANT_REPLIES

INBOXES = "_INBOX."  # where NATS' clients expect answers
_MAPPED = "_R_."  # how the server writes the reply of a request to another account's service
_TENANTS = TENANT_INFERENCE_SUBMIT.partition("*")[0]


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


def reply_subject(subject: str, reply: str) -> str:
    """Where a tenant's request is answered, so that the answer reaches its account and no other;
    empty, if the request names what is no inbox.

    >>> reply_subject("symphony.tenant.acme.adapter.get", "_INBOX.a.b")
    'symphony.reply.acme.a.b'
    >>> reply_subject("symphony.tenant.acme.adapter.get", "symphony.worker.report")
    ''
    >>> reply_subject("symphony.worker.report", "_INBOX.a.b")
    '_INBOX.a.b'
    """
    if not subject.startswith(_TENANTS) or reply.startswith(_MAPPED):
        return reply
    if not reply.startswith(INBOXES):
        return ""
    before, _, _ = TENANT_REPLIES.partition("*")
    token = subject.removeprefix(_TENANTS).partition(".")[0]
    return f"{before}{token}.{reply.removeprefix(INBOXES)}"


def own_tenant(tenant: TenantId, named: TenantId) -> TenantId:
    """`tenant`, whose credentials a message came with. One that names none names the default.

    Raises:
        WrongTenant: the message names another.
    """
    if named not in (DEFAULT_TENANT, tenant):
        raise WrongTenant(tenant)
    return tenant
