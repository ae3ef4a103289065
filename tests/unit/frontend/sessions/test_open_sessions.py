"""What a request may leave behind once its session was deleted."""

from weakref import ref

from services.frontend.core.sessions.open_sessions import OpenSessions
from shared.ids import SessionId, TenantId

T, FOX = TenantId("t"), SessionId("fox")


def test_only_sessions_opened_before_are_forgotten() -> None:
    sessions = OpenSessions()
    before, other = sessions.make(T, FOX), sessions.make(TenantId("u"), FOX)
    sessions.forget(T, FOX)
    after = sessions.make(T, FOX)
    assert (before.is_forgotten, other.is_forgotten, after.is_forgotten) == (True, False, False)


def test_a_session_without_a_request_is_not_kept() -> None:
    sessions = OpenSessions()
    opened = ref(sessions.make(T, FOX))
    assert opened() is None
