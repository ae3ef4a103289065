"""Whoever announces is never held up and sees no error, whatever the frontend does."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import pytest

from cli.base.children import free_port
from symphony_client import Advisory, Announcer, AsyncHttpTransport, Settings
from symphony_client.core.calls import Call
from tests.clients.fake_frontend import Asked, FakeFrontend, Reply, fake_frontend, refusal, state_of

T = TypeVar("T")
PATIENCE_S = 60.0
SHORT_S = 0.1


def announcer_of(
    url: str, waiting_max: int = 256, linger_s: float = 0.0, timeout_s: float = PATIENCE_S
) -> Announcer:
    transport = AsyncHttpTransport(Settings(url, timeout_s=60.0))
    return Announcer(transport, linger_s=linger_s, waiting_max=waiting_max, timeout_s=timeout_s)


@pytest.fixture
def announcer(frontend: FakeFrontend) -> Iterator[Announcer]:
    with announcer_of(frontend.url) as made:
        yield made


def hint(session_id: str = "s", expected_arrival: float | None = None) -> Advisory:
    return Advisory(session_id=session_id, expected_arrival=expected_arrival)


def wait_for_failures(announcer: Announcer, num: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while announcer.counts.failed < num:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_hints_of_threads_and_of_event_loops_arrive(
    frontend: FakeFrontend, announcer: Announcer
) -> None:
    async def one(number: int) -> None:
        announcer.announce(hint(f"a{number}"))

    async def many() -> None:
        await asyncio.gather(*(one(number) for number in range(20)))

    threads = [
        threading.Thread(target=announcer.announce, args=(hint(f"t{number}"),))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    asyncio.run(many())
    for thread in threads:
        thread.join()
    assert announcer.flush(PATIENCE_S)
    assert {body["session_id"] for body in frontend.hints()} == {
        f"{kind}{number}" for kind in "at" for number in range(20)
    }
    assert announcer.counts.sent == 40


def test_what_was_said_later_of_a_session_arrives_later(
    frontend: FakeFrontend, announcer: Announcer
) -> None:
    for _ in range(20):
        announcer.announce(hint())
        announcer.take_back("s")
    assert announcer.flush(PATIENCE_S)
    assert frontend.told()[-1] == "no s"
    counts = announcer.counts
    assert counts.taken == 40 == counts.sent + counts.merged


def test_a_turn_that_comes_at_once_is_not_announced(frontend: FakeFrontend) -> None:
    with announcer_of(frontend.url, linger_s=60.0) as announcer:
        announcer.announce(hint("came"))
        announcer.announce(hint("comes"))
        announcer.withdraw("came")
        announcer.withdraw("unknown")
        assert announcer.flush(PATIENCE_S)  # nothing lingers any more
        assert frontend.told() == ["hint comes"]
        assert announcer.counts.withdrawn == 1


def test_nobody_there_is_noticed_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), announcer_of(f"http://127.0.0.1:{free_port()}") as away:
        away.announce(hint())
        wait_for_failures(away, 1)
        for number in range(100):
            away.announce(hint(f"s{number}"))
        assert away.is_away
        assert not away.flush(0.01)
        assert away.counts.failed <= 3  # not a hundred
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1


def test_a_deployment_that_comes_back_is_announced_to_again() -> None:
    port = free_port()
    with announcer_of(f"http://127.0.0.1:{port}") as announcer:
        announcer.announce(hint())
        wait_for_failures(announcer, 1)
        with fake_frontend(port) as frontend:
            announcer.announce(hint("back"))
            assert announcer.flush(PATIENCE_S)
            assert frontend.told() == ["hint back"]
        assert not announcer.is_away


def test_a_deployment_that_never_answers_costs_a_timeout(frontend: FakeFrontend) -> None:
    frontend.free.clear()
    with announcer_of(frontend.url, timeout_s=SHORT_S) as announcer:
        announcer.announce(hint())
        assert announcer.counts.taken == 1  # nobody waited for the answer
        wait_for_failures(announcer, 1)
        assert announcer.is_away


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_kept(frontend: FakeFrontend, announcer: Announcer, status: int) -> None:
    def refuse(_: object) -> Reply:
        return refusal(status, "hints_throttled")

    frontend.answer, frontend.headers = refuse, {"Retry-After": "60"}
    announcer.announce(hint())
    wait_for_failures(announcer, 1)
    frontend.answer = None
    announcer.announce(hint("later"))
    assert not announcer.flush(0.7)  # longer than the first pause of its own
    assert frontend.told() == ["hint s"]


def test_a_hint_that_is_wrong_does_not_hold_up_others(
    frontend: FakeFrontend, announcer: Announcer, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(asked: Asked) -> Reply:
        return refusal(400, "wrong") if asked.session_id == "s" else (202, state_of("b"))

    frontend.answer = answer
    announcer.announce(hint(""))  # refused here
    announcer.announce(hint())  # refused there
    announcer.announce(hint("b"))
    assert announcer.flush(PATIENCE_S)
    assert (announcer.counts.refused, announcer.counts.sent) == (2, 1)
    assert not announcer.is_away


def test_to_take_back_what_is_not_there_is_no_failure(
    frontend: FakeFrontend, announcer: Announcer
) -> None:
    frontend.answer = lambda _: refusal(404, "advisory_not_found")
    announcer.take_back("s")
    assert announcer.flush(PATIENCE_S)
    assert (announcer.counts.sent, announcer.counts.refused) == (1, 0)


def test_of_too_many_the_oldest_is_dropped(frontend: FakeFrontend) -> None:
    with announcer_of(frontend.url, waiting_max=3, linger_s=60.0) as announcer:
        for number in range(5):
            announcer.announce(hint(f"s{number}"))
        assert announcer.flush(PATIENCE_S)
        assert sorted(frontend.told()) == ["hint s2", "hint s3", "hint s4"]
        assert announcer.counts.dropped == 2


def test_closing_sends_what_waits_and_may_be_done_again(frontend: FakeFrontend) -> None:
    announcer = announcer_of(frontend.url, linger_s=60.0)
    announcer.announce(hint())
    closers = [threading.Thread(target=announcer.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    announcer.close()
    assert frontend.told() == ["hint s"]
    announcer.announce(hint())
    announcer.take_back("s")
    announcer.withdraw("s")
    assert announcer.counts.late == 2
    assert announcer.flush(0)


def test_closing_has_an_end_whatever_the_deployment_does(frontend: FakeFrontend) -> None:
    frontend.free.clear()
    announcer = announcer_of(frontend.url, timeout_s=SHORT_S)
    for number in range(100):
        announcer.announce(hint(f"s{number}"))
    began_s = time.monotonic()
    announcer.close(0.05)
    assert time.monotonic() - began_s < PATIENCE_S
    assert not [one for one in threading.enumerate() if one.name == "symphony-announcer"]


def test_closing_what_never_began() -> None:
    announcer = announcer_of("http://127.0.0.1:1")
    announcer.close()
    announcer.close()
    assert announcer.flush(0)


class Broken:
    """A transport with a fault of its own."""

    async def send(self, call: Call[T]) -> T:
        raise ZeroDivisionError

    async def close(self) -> None:
        raise ZeroDivisionError

    def for_hints(self) -> "Broken":
        return self


def test_a_fault_of_a_transport_is_not_the_agents(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(Broken(), linger_s=0.0)
    announcer.announce(hint())
    wait_for_failures(announcer, 1)
    announcer.close()
    announcer.announce(hint())
    assert announcer.counts.late == 1


def test_nothing_is_logged_with_the_lock_held(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever collects logs may announce something too."""
    with announcer_of(f"http://127.0.0.1:{free_port()}", waiting_max=1) as announcer:

        class Nosy(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                counts.append(announcer.counts.taken)

        counts: list[int] = []
        nosy = Nosy()
        logger = logging.getLogger("symphony_client")
        logger.addHandler(nosy)
        try:
            with caplog.at_level(logging.DEBUG, "symphony_client"):
                announcer.announce(hint())
                wait_for_failures(announcer, 1)
                announcer.announce(hint("a"))
                announcer.announce(hint("b"))  # drops the one before
        finally:
            logger.removeHandler(nosy)
        assert counts


def test_flushing_what_ended_with_something_left_does_not_wait(frontend: FakeFrontend) -> None:
    frontend.free.clear()
    announcer = announcer_of(frontend.url, timeout_s=SHORT_S)
    announcer.announce(hint())
    announcer.close(0.0)
    began_s = time.monotonic()
    announcer.flush(2 * PATIENCE_S)
    assert time.monotonic() - began_s < PATIENCE_S
