"""Silence, probes, death and return of workers, and what is told of them."""

from services.scheduler.core import ProbeWorker, StartTurn
from shared.ids import HostId, WorkerId
from shared.wire.messages import WorkerReport
from tests.unit.scheduler.jobs.driver import card as oneshot_card
from tests.unit.scheduler.turns.driver import INTERVAL, SECOND, Driver, card, only


def state_of(d: Driver, worker: str) -> str:
    return next(w.state for w in d.core.status(d.now_ns).workers if w.worker_id == worker)


def test_a_silent_worker_is_probed_once_and_then_counts_as_dead() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    assert only(ProbeWorker, d.wake(2 * INTERVAL)) == [ProbeWorker(WorkerId("w1"))]
    assert only(ProbeWorker, d.wake(INTERVAL)) == []
    assert state_of(d, "w1") == "ready"
    d.wake(2 * INTERVAL)
    assert state_of(d, "w1") == "dead"
    assert d.core.status(d.now_ns).num_turns_waiting == 1


def test_nobody_listening_means_dead_at_once() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.wake(INTERVAL)
    d.report("w2")
    d.wake(INTERVAL)
    assert only(StartTurn, d.gone("w1"))[0].worker_id == "w2"
    assert state_of(d, "w1") == "dead"


def test_a_worker_that_reported_since_the_probe_lives() -> None:
    d = Driver()
    d.report("w1")
    d.wake(2 * INTERVAL)
    d.now_ns += 1
    d.report("w1")
    d.gone("w1")
    assert state_of(d, "w1") == "ready"


def test_silence_while_nobody_listened_does_not_count() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    assert only(ProbeWorker, d.wake(2 * INTERVAL)), "asked, and then the bus was away"
    assert only(ProbeWorker, d.stand_still(30 * SECOND)) == []
    d.gone("w1")  # of the question before
    assert state_of(d, "w1") == "ready"
    assert only(ProbeWorker, d.wake(2 * INTERVAL))
    d.wake(3 * INTERVAL)
    assert state_of(d, "w1") == "dead", "the silence since then does"


def test_a_worker_back_from_the_dead_is_watched_again_once() -> None:
    d = Driver()
    d.report("w1")
    for _ in range(3):
        d.wake(2 * INTERVAL)
        d.gone("w1")
        assert state_of(d, "w1") == "dead"
        d.report("w1")
        assert state_of(d, "w1") == "ready"
    assert len(only(ProbeWorker, d.wake(2 * INTERVAL))) == 1


def test_a_worker_dead_for_long_is_forgotten() -> None:
    d = Driver()
    d.report("w1")
    for _ in range(70):
        d.wake(SECOND)
    assert d.core.status(d.now_ns).workers == []


def test_an_old_report_is_ignored() -> None:
    d = Driver()
    d.report("w1", seq=5)
    d.report("w1", seq=4, state="draining")
    assert state_of(d, "w1") == "ready"


def test_following_the_wakes_alone_finds_the_death() -> None:
    d = Driver()
    d.report("w1")
    died_at_ns = d.now_ns + d.limits.dead_after_ns
    while d.alarm_ns is not None and state_of(d, "w1") != "dead":
        d.now_ns = d.alarm_ns
        d.wake()
    assert d.now_ns == died_at_ns


def test_the_status_names_models_of_both_kinds() -> None:
    d = Driver()
    report = WorkerReport(
        worker_id=WorkerId("w1"),
        incarnation="a",
        seq=1,
        host_id=HostId("h"),
        state="ready",
        models=[card("chat")],
        oneshot=[oneshot_card("embed")],
    )
    d.core.on_report(report, d.now_ns)
    [worker] = d.core.status(d.now_ns).workers
    assert worker.models == ["chat", "embed"]
