"""How long a turn's KV is kept: whose word holds."""

import pytest

from services.frontend.core.limits.quotas import RELEASED_S, TenantLimits, kv_expiry_s
from shared.errors import InvalidRequest

DAY = 86_400


def limits(usual: int = 0, most: int = 0) -> TenantLimits:
    return TenantLimits(kv_expiry_s=usual, kv_expiry_s_max=most)


def test_who_says_nothing_has_what_its_tenant_has() -> None:
    assert kv_expiry_s(limits(), None) == 0
    assert kv_expiry_s(limits(7 * DAY), None) == 7 * DAY


@pytest.mark.parametrize(
    ("own", "most"),
    [(limits(), DAY), (limits(3600), 3600), (limits(3600, 7200), 7200), (limits(0, 60), 60)],
)
def test_a_request_may_ask_for_as_much_as_its_tenant_may_have(own: TenantLimits, most: int) -> None:
    assert kv_expiry_s(own, most) == most
    assert kv_expiry_s(own, 1) == 1
    with pytest.raises(InvalidRequest) as refused:
        kv_expiry_s(own, most + 1)
    assert refused.value.param == "kv_expiry_s"


def test_a_hint_only_prolongs_and_a_release_shortens() -> None:
    assert kv_expiry_s(limits(), None, retained_s=600.0) == 0, "a day is more"
    assert kv_expiry_s(limits(600), None, retained_s=3600.0) == 600, "it may not have more"
    assert kv_expiry_s(limits(600, DAY), None, retained_s=3600.0) == 3600
    assert kv_expiry_s(limits(600, DAY), None, retained_s=30 * DAY) == DAY
    assert kv_expiry_s(limits(), None, is_released=True) == RELEASED_S
    assert kv_expiry_s(limits(5), None, is_released=True) == 5
    assert kv_expiry_s(limits(5, DAY), None, is_released=True) == 5, "it never prolongs"
    assert kv_expiry_s(limits(), 120, is_released=True) == 120, "its own word is the last"
