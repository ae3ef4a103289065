"""Tenants as tokens of subjects."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import TENANT_TOKEN_CHARS_MAX, TenantId, tenant_of_token, tenant_token


@given(st.text(min_size=1, max_size=TENANT_TOKEN_CHARS_MAX // 12))
def test_any_tenant_has_a_token_of_its_own(name: str) -> None:
    try:
        token = tenant_token(TenantId(name))
    except UnicodeEncodeError:
        return  # no text, and nothing that JSON can say
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert tenant_of_token(token) == name


@given(st.text(alphabet="ab_-0123456789cdefAZ.", max_size=12))
def test_what_is_read_as_a_tenant_is_its_only_token(token: str) -> None:
    try:
        tenant = tenant_of_token(token)
    except ValueError:
        return
    assert tenant_token(tenant) == token


@pytest.mark.parametrize("name", ["", "x" * (TENANT_TOKEN_CHARS_MAX + 1)])
def test_a_name_of_no_length_or_too_much_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name has 1 to"):
        tenant_token(TenantId(name))
