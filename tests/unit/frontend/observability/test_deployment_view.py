"""The house as one object: what was counted lately, and who may see what of it."""

from typing import Any

from services.frontend.core.observability.deployment_view import (
    WINDOW_NS,
    Answers,
    DeploymentView,
    for_tenant,
)
from shared.ids import HostId, TenantId, WorkerId
from shared.runtime.exposition import Sample
from shared.wire.messages import (
    HintRate,
    HintStatus,
    KvStats,
    SchedulerStatus,
    ServiceStatus,
    Throttled,
    WorkerStatus,
)

S = 1_000_000_000


def look(view: DeploymentView, at_s: float, *samples: Sample, **more: Any) -> dict[str, Any]:
    answers: dict[str, Any] = {"services": {}, "schedulers": [], "stores": []} | more
    return view.on_answers(Answers(samples=samples, **answers), int(at_s * S), at_s)


def counted(name: str, value: float, process: str = "p", **labels: str) -> Sample:
    return name, {"process": process, **labels}, value


def test_rates_are_of_the_last_half_minute() -> None:
    view = DeploymentView()
    assert look(view, 0, counted("request_success_total", 100))["rates"]["requests"] == 0
    told = look(view, 2, counted("request_success_total", 104))
    assert (told["rates"]["requests"], told["window_s"]) == (2.0, 2.0)
    told = look(view, WINDOW_NS / S, counted("request_success_total", 130))
    assert told["rates"]["requests"] == 1.0
    told = look(view, WINDOW_NS / S + 2, counted("request_success_total", 164))
    assert (told["rates"]["requests"], told["window_s"]) == (2.0, 30.0), "the first is forgotten"


def test_after_a_while_in_which_nobody_watched_rates_begin_anew() -> None:
    view = DeploymentView()
    look(view, 0, counted("request_success_total", 0))
    look(view, 2, counted("request_success_total", 100))
    told = look(view, 100, counted("request_success_total", 900))
    assert (told["rates"]["requests"], told["window_s"]) == (0.0, 0.0)
    assert look(view, 102, counted("request_success_total", 902))["rates"]["requests"] == 1.0


def test_who_begins_anew_has_gained_all_and_who_is_new_nothing() -> None:
    view = DeploymentView()
    look(view, 0, counted("http_errors_total", 50, code="500"))
    told = look(view, 1, counted("http_errors_total", 3, code="500"))
    assert told["rates"]["errors"] == 3.0
    told = look(
        view, 2,
        counted("http_errors_total", 5, code="500"), counted("http_errors_total", 1, code="1"),
        counted("http_errors_total", 9999, "new"),
    )  # fmt: skip
    assert told["rates"]["errors"] == 3.0, "(5 + 1) in two seconds"


def test_what_is_counted_by_label() -> None:
    view = DeploymentView()

    def at(second: float, num: float) -> dict[str, Any]:
        return look(
            view, second,
            counted("advisories_total", num, outcome="used"),
            counted("advisories_total", 7, outcome="late"),
            counted("kv_staged_pages_total", num, "a", tier="disk"),
            counted("kv_staged_pages_total", num, "b", tier="disk"),
            counted("scheduler_placements_total", num, reason="kv"),
            counted("kv_peer_bytes_total", 2 * num, direction="in"),
            counted("prefix_cache_queries_total", 4 * num, model="m"),
            counted("prefix_cache_hits_total", num, model="m"),
            counted("batches_total", num, model="e"),
            counted("batches_total", 1, model="idle"),
            counted("batch_jobs_total", 8 * num, model="e"),
        )  # fmt: skip

    first = at(0, 10)
    assert first["cached_share"] is None and first["batches"] == []
    told = at(10, 20)
    assert told["advisories"]["outcomes"] == {"used": 1.0}
    assert told["staged_pages"] == {"disk": 2.0} and told["placements"] == {"kv": 1.0}
    assert told["peer_bytes"] == {"in": 2.0} and told["cached_share"] == 0.25
    assert told["batches"] == [
        {"model": "e", "batches_per_s": 1.0, "jobs_per_s": 8.0, "mean_size": 8.0}
    ]


def test_times_are_read_from_buckets() -> None:
    view = DeploymentView()

    def at(second: float, *nums: float) -> dict[str, Any]:
        buckets = zip(("0.1", "0.2", "+Inf"), nums, strict=True)
        samples = [counted("time_to_first_token_seconds_bucket", n, le=le) for le, n in buckets]
        told: dict[str, Any] = look(view, second, *samples)["latency_ms"]["ttft"]
        return told

    assert at(0, 5, 5, 5) == {"p50": None, "p99": None}
    assert at(1, 15, 15, 15) == {"p50": 50.0, "p99": 99.0}
    assert at(2, 15, 105, 105) == {"p50": 144.44, "p99": 198.89}
    assert at(3, 15, 105, 1005)["p99"] == 200.0, "more than the last bound is not known"


def test_who_is_there() -> None:
    worker = WorkerStatus(
        worker_id=WorkerId("h-w0"), host_id=HostId("h"), state="ready", models=["m"], num_turns=2
    )
    told = look(
        DeploymentView(), 0,
        counted("turns_running", 3, "h-w0", model="m"),
        counted("turns_waiting", 1, "h-w0", model="m"),
        counted("autoscale_add", 0, "spare"), counted("autoscale_add", 2, "leader"),
        counted("lora_requests_info", 5.0, "h-w0", model="m", running_lora_adapters="a,b",
                waiting_lora_adapters=""),
        counted("lora_requests_info", 9.0, "h-w0", model="m", running_lora_adapters="c",
                waiting_lora_adapters="d"),
        services={"h-w0": ServiceStatus(service="worker", instance="0", pid=7, state="ready")},
        schedulers=[SchedulerStatus(workers=[worker], num_turns_waiting=4, num_reservations=5)],
        stores=[KvStats(host_id="h", num_sessions=6), KvStats(host_id="g", num_sessions=6)],
    )  # fmt: skip
    assert told["services"] == [{"service": "worker", "name": "h-w0", "pid": 7, "state": "ready"}]
    assert told["turns"] == {"running": 3, "waiting": 5, "placed": 0, "expected": 5}
    (shown,) = told["workers"]
    assert (shown["num_running"], shown["num_waiting"], shown["num_turns"]) == (3, 1, 2)
    assert [(host["host_id"], host["workers"]) for host in told["hosts"]] == [
        ("g", []), ("h", ["h-w0"]),
    ]  # fmt: skip
    assert told["sessions"] == 6 and told["scaling"]["add"] == 2
    assert told["adapters"] == {"known": 0, "running": ["c"], "waiting": ["d"]}


def test_a_tenant_sees_nothing_of_others() -> None:
    a, b = TenantId("a"), TenantId("b")
    hints = HintStatus(
        num_live=3,
        rates=[HintRate(tenant=tenant, hits=0.5, num_hints=2) for tenant in (a, b)],
        throttled=[Throttled(tenant=b, place="10.0.0.1", retry_after_s=1, num_refused=9)],
    )
    status = ServiceStatus(service="tracker", instance="0", pid=1, state="ready", hints=hints)
    whole = look(DeploymentView(), 0, services={"t": status})
    own = for_tenant(whole, a)
    assert [one["tenant"] for one in own["advisories"]["rates"]] == ["a"]
    assert own["advisories"]["throttled"] == [] and own["advisories"]["live"] == 3
    assert len(whole["advisories"]["throttled"]) == 1, "the view itself is as it was"
    assert "10.0.0.1" not in str(own)
    running = look(
        DeploymentView(), 0,
        counted("lora_requests_info", 9.0, "w", model="m", running_lora_adapters="secret",
                waiting_lora_adapters=""),
    )  # fmt: skip
    assert running["adapters"]["running"] == ["secret"]
    assert "secret" not in str(for_tenant(running, a))
