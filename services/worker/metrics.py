"""The worker's metrics."""

from prometheus_client import Counter

from services.worker.core.adapters.stats import AdapterTimes
from services.worker.core.engine.status import EngineStatus
from services.worker.core.step import StepPlan, StepResult
from shared.runtime.metrics import TOKEN_BUCKETS, counter, gauge, histogram

RUNNING = gauge("turns_running", "Turns in the batch", ["model"])
WAITING = gauge("turns_waiting", "Turns that wait for pages or a place", ["model"])
NUM_WAITING = gauge("num_requests_waiting", "The same, as other servers call it", ["model"])
KV_USAGE = gauge("kv_cache_usage_perc", "Share of pool pages that hold KV", ["model"])
KV_PAGES = gauge("kv_pages", "Pool pages by state", ["model", "state"])
PREFIX_QUERIES = counter("prefix_cache_queries", "Prompt blocks looked up", ["model"])
PREFIX_HITS = counter("prefix_cache_hits", "Prompt blocks that were not computed", ["model"])
PREEMPTIONS = counter("num_preemptions", "Turns that gave their pages up", ["model"])
PAUSES = counter("turns_paused", "Turns that made way for an urgent one", ["model"])
LOAD_FAILURES = counter("kv_load_failures", "Pages that could not be loaded", ["model"])
STALL_SECONDS = counter("kv_stall_seconds", "Waiting for history", ["model", "layer"])
POISONED = counter("turns_poisoned", "Turns that could not be computed", ["model"])
REJECTED = counter("worker_rejected", "Messages of peers that could not be used", ["what", "code"])
DEVICE_SECONDS = counter(
    "device_seconds", "In steps (busy), and between steps that could follow (idle)",
    ["model", "state"],
)  # fmt: skip
STEPS_UNRECORDED = counter(
    "steps_unrecorded", "Steps of a GPU that were launched kernel by kernel", ["model", "reason"]
)
STEP_TOKENS = counter("step_tokens", "Tokens computed", ["model", "kind"])
ITERATION_TOKENS = histogram(
    "iteration_tokens_total", "Tokens computed in one step", ["model"], TOKEN_BUCKETS
)
TURN_TARGETS = counter(
    "turn_targets", "Turns with a target, by whether it was met", ["model", "target", "outcome"]
)

# Read by gateways: which adapters a worker has at work, under the names that vLLM gave these.
LORA_INFO = gauge(
    "lora_requests_info", "Adapters that turns run on, and wait for; when that was so, seconds",
    ["model", "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
)  # fmt: skip
ADAPTER_LOAD_SECONDS = histogram(
    "adapter_load_seconds", "From the question for an adapter until it was there",
    ["model", "source"],
)  # fmt: skip
ADAPTER_LOAD_FAILURES = counter("adapter_load_failures", "Adapters that did not come", ["model"])
ADAPTER_PAGES = gauge("adapter_pages", "Pool pages of adapters that turns want", ["model"])
ADAPTER_FIRST_TOKEN_SECONDS = histogram(
    "adapter_first_token_seconds",
    "From a turn's arrival here to its first token, by how it came to its adapter",
    ["model", "start"],
)  # fmt: skip

STEP_MODEL_R2 = gauge(
    "step_model_r2", "How much of the decode steps' differences a model with adapters explains",
    ["model", "units"],
)  # fmt: skip

WAITING_NAMES_MAX = 64


def count_step(model_id: str, plan: StepPlan, result: StepResult) -> None:
    """Add one step to the counters."""
    num_decodes = plan.num_decodes
    STEP_TOKENS.labels(model_id, "decode").inc(num_decodes)
    STEP_TOKENS.labels(model_id, "prefill").inc(plan.num_tokens - num_decodes)
    ITERATION_TOKENS.labels(model_id).observe(plan.num_tokens)
    if result.unrecorded:
        STEPS_UNRECORDED.labels(model_id, result.unrecorded).inc()
    if result.broken:
        POISONED.labels(model_id).inc(len(result.broken))
    for layer, stall_ns in enumerate(result.stall_ns):
        if stall_ns:
            STALL_SECONDS.labels(model_id, str(layer)).inc(stall_ns / 1e9)


class EngineMetrics:
    """Exports the status of one engine."""

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self._lora_labels: tuple[str, ...] = ()  # of `LORA_INFO`, as exported last
        self._totals: dict[Counter, float] = {}  # the engine's at the last report

    def report(self, status: EngineStatus, times: AdapterTimes) -> None:
        """Set the gauges from the engine's status.

        Args:
            times: of adapters, since the last call.
        """
        self._report_adapters(status, times)
        model_id = self._model_id
        pool, counted = status.pool, status.totals
        RUNNING.labels(model_id).set(status.num_running)
        WAITING.labels(model_id).set(status.num_waiting)
        NUM_WAITING.labels(model_id).set(status.num_waiting)
        KV_USAGE.labels(model_id).set(1.0 - pool.num_free / pool.num_pages)
        KV_PAGES.labels(model_id, "free").set(pool.num_free)
        KV_PAGES.labels(model_id, "clean").set(pool.num_takeable - pool.num_unsafe)
        KV_PAGES.labels(model_id, "given_up").set(pool.num_unsafe)
        KV_PAGES.labels(model_id, "active_or_dirty").set(
            pool.num_pages - pool.num_free - pool.num_takeable
        )
        totals: dict[Counter, float] = {
            PREFIX_QUERIES.labels(model_id): counted.num_prefix_queries,
            PREFIX_HITS.labels(model_id): counted.num_prefix_hits,
            PREEMPTIONS.labels(model_id): counted.num_preemptions,
            PAUSES.labels(model_id): counted.num_pauses,
            LOAD_FAILURES.labels(model_id): counted.num_load_failures,
            ADAPTER_LOAD_FAILURES.labels(model_id): status.adapters.num_failures,
            DEVICE_SECONDS.labels(model_id, "busy"): counted.busy_ns / 1e9,
            DEVICE_SECONDS.labels(model_id, "idle"): counted.idle_ns / 1e9,
        }
        for (target, outcome), num_turns in counted.targets.items():
            totals[TURN_TARGETS.labels(model_id, target, outcome)] = num_turns
        for metric, total in totals.items():
            metric.inc(total - self._totals.get(metric, 0))
            self._totals[metric] = total

    def _report_adapters(self, status: EngineStatus, times: AdapterTimes) -> None:
        model_id = self._model_id
        for source, duration_ns in times.loads:
            ADAPTER_LOAD_SECONDS.labels(model_id, source).observe(duration_ns / 1e9)
        for start, duration_ns in times.first_tokens:
            ADAPTER_FIRST_TOKEN_SECONDS.labels(model_id, start).observe(duration_ns / 1e9)
        adapters = status.adapters
        ADAPTER_PAGES.labels(model_id).set(adapters.num_pages)
        for units, model in status.step_models.items():
            STEP_MODEL_R2.labels(model_id, units).set(model.r2)
        waiting = ",".join(adapters.waiting[:WAITING_NAMES_MAX])
        labels = str(adapters.lines_max), ",".join(adapters.running), waiting
        if self._lora_labels != labels:
            if self._lora_labels:
                LORA_INFO.remove(model_id, *self._lora_labels)
            self._lora_labels = labels
        LORA_INFO.labels(model_id, *labels).set_to_current_time()
