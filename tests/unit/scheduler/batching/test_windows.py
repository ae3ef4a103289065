"""When a batch may start."""

import pytest

from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec
from services.scheduler.core.batching.windows import DeferredWindow, EnoughWindow, TimeoutWindow

SPEC = ModelSpec("m", [0, 6, 7, 8, 10], slo_ns=20)
JOB = Job("m", deadline_ns=50, arrived_at_ns=30)


def test_deferred_opens_when_one_more_job_would_be_late() -> None:
    lead_ns = DeferredWindow().lead_ns(SPEC, Delays())
    assert DeferredWindow().base_ns(JOB) == 50
    assert lead_ns[1:4] == [7, 8, 10]


@pytest.mark.parametrize("window", [DeferredWindow(), EnoughWindow(3), TimeoutWindow(5)])
def test_a_full_batch_need_not_wait(window: DeferredWindow | EnoughWindow | TimeoutWindow) -> None:
    lead_ns = window.lead_ns(SPEC, Delays(3, 1))
    assert len(lead_ns) == SPEC.size_max + 1
    assert window.base_ns(JOB) - lead_ns[SPEC.size_max] < 0


def test_deferred_allows_for_the_way_to_the_gpu() -> None:
    lead_ns = DeferredWindow().lead_ns(SPEC, Delays(ctrl_ns=3, data_ns=2))
    assert lead_ns[1:4] == [7 + 5, 8 + 7, 10 + 9]


def test_enough_jobs_need_not_wait() -> None:
    plain_ns = DeferredWindow().lead_ns(SPEC, Delays(3))
    lead_ns = EnoughWindow(3).lead_ns(SPEC, Delays(3))
    assert lead_ns[:3] == plain_ns[:3]
    assert lead_ns[3:] == [NEVER_NS, NEVER_NS]


def test_a_target_longer_than_is_worth_it_makes_nobody_wait() -> None:
    assert EnoughWindow(3, worth_ns=12).base_ns(JOB) == JOB.arrived_at_ns + 12
    assert EnoughWindow(3, worth_ns=21).base_ns(JOB) == JOB.deadline_ns


def test_timeout_counts_from_the_heads_arrival() -> None:
    window = TimeoutWindow(5)
    assert [window.base_ns(JOB) - lead for lead in window.lead_ns(SPEC, Delays(9))[1:4]] == [35] * 3
    assert TimeoutWindow().base_ns(JOB) == JOB.arrived_at_ns


def test_no_batch_waits_for_a_moment_nearer_than_the_slack_to_its_latest_one() -> None:
    """One job more costs 1 or 2; a timer may ring 3 late."""
    lead_ns = DeferredWindow().lead_ns(SPEC, Delays(ctrl_ns=1, slack_ns=3))
    assert lead_ns[1:4] == [6 + 3 + 1, 7 + 3 + 1, 8 + 3 + 1]
