"""What a request may leave behind once its session was deleted."""

from services.frontend.core.sessions.open_sessions import OpenSessions
from shared.ids import SessionId, TenantId

T, FOX = TenantId("t"), SessionId("fox")


def test_only_claims_of_before_are_forgotten() -> None:
    claims = OpenSessions()
    before, other = claims.make(T, FOX), claims.make(TenantId("u"), FOX)
    claims.forget(T, FOX)
    after = claims.make(T, FOX)
    assert (before.is_forgotten, other.is_forgotten, after.is_forgotten) == (True, False, False)


def test_a_claim_that_nobody_holds_costs_nothing() -> None:
    claims = OpenSessions()
    claims.make(T, FOX)
    assert not list(claims._claims)
