"""The worker's settings (``SYMPHONY_...``)."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from services.worker.core.engine_limits import AdmissionName, LoraStart, StoredDtype
from services.worker.oneshot.model import ServedTask
from shared.eviction import EvictionName
from shared.runtime.config import ServiceConfig, constant
from shared.wire.messages import SLO_MS_MAX


class WorkerConfig(ServiceConfig):
    """Attributes:
    engine: what computes generative models: `symphony`, or `vllm`; see docs/engines.md.
    vllm_args: further arguments of vLLM's engine, as a JSON object: `tensor_parallel_size`,
        `quantization` and such.
    models: folders or hub ids to serve, as a JSON list; empty: the bundled demo model.
    tasks: what models are for where their own files leave it open or say otherwise, as a JSON
        object of ids.
    emulate: latency profiles to emulate instead of running models; see `shared.zoo`.
    true_pages: emulated pages are as large as the profile's model would have them, in a pool of
        `kv_bytes`; else they are small, and the pool has as many as the profile says.
    max_model_len: tokens of a prompt and its reply together; 0: the limit of each model, which is
        also the largest value.
    kv_bytes: memory for KV pages of each model; 0: 1 GiB on a CPU, a share of what a GPU has left.
    gpu_memory_share: share for KV pages of the GPU memory left beside weights and the largest step.
    kv_stored_dtype: element type of KV outside of the pool: the `model`'s, or `int8`, rounded to
        half of bf16's bytes.
    num_threads: cores to compute on; 0: all.
    tensor_parallel: processes that compute each generative model, on the CPU: each has an equal
        part of the heads, the MLPs and the KV.
    layers: `fast` layers in place of transformers' own where they compute the same, `plain`
        (transformers' own), or `invariant`, whose results do not depend on the rest of the batch.
    oneshot_variants: input lengths, tokens, that text models are batched at; lengths above a
        model's limit are left out, and the limit is added.
    oneshot_batch_max: largest batch of a one-shot model; 0: 16 on a CPU, 64 on a GPU, and as many
        as the target allows when emulated.
    oneshot_slo_ms: target of requests that name none; 0: three times a batch of 8 at the longest
        variant, at least 50.
    oneshot_bytes: memory for one-shot models, which are then loaded and unloaded as the scheduler
        orders; 0: all are loaded at the start, and stay so.
    prefill_admission: `eager`, as soon as there is room, or `deferred`, as late as targets allow.
    slo_ttft_ms: target for the time to the first token of requests without one; 0: none.
    """

    engine: Literal["symphony", "vllm"] = "symphony"
    vllm_args: dict[str, Any] = Field(default_factory=dict)
    models: list[str] = Field(default_factory=list)
    tasks: dict[str, ServedTask] = Field(default_factory=dict)
    emulate: str = ""
    true_pages: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int = Field(0, ge=0)
    kv_bytes: int = Field(0, ge=0)
    gpu_memory_share: float = Field(0.9, gt=0, le=1)
    kv_stored_dtype: StoredDtype = "model"
    num_threads: int = Field(0, ge=0)
    tensor_parallel: int = Field(1, ge=1, le=64)
    layers: Literal["fast", "plain", "invariant"] = "fast"
    prefill_tokens_max: int = Field(0, ge=0)
    turns_running_max: int = Field(64, ge=1)
    prefill_admission: AdmissionName = "eager"
    slo_ttft_ms: float = Field(2000.0, ge=0)
    drain_ms: int = Field(5000, ge=0)
    oneshot_variants: list[Annotated[int, Field(ge=1)]] = Field(
        [32, 64, 128, 256, 512], min_length=1
    )
    oneshot_batch_max: int = Field(0, ge=0, le=1024)
    oneshot_slo_ms: float = Field(0.0, ge=0, le=SLO_MS_MAX)
    oneshot_bytes: int = Field(default=0, ge=0)
    scheduler_shards: int = Field(default=1, gt=0)

    # A pass begins while later layers of a prompt's history are loading. Off: with all of it.
    layerwise: bool = constant(True)
    # Which idle blocks leave the pool first.
    eviction: EvictionName = constant("predicted")
    # How a turn starts whose adapter is loading: `wait` for all of it, `stream` its layers behind
    # the pass, `assist` by computing on the host what is missing, or `auto`, the best that works
    # (without helpers on a GPU, where they have not been measured).
    lora_start: LoraStart = constant("auto")
    # MB/s of loads into the pool on a CPU and of emulated models, to try a GPU's link; 0: memory's.
    link_mb_s: float = constant(0.0)
    # Off: no kvstore is used. KV exists only in the pool.
    write_behind: bool = constant(True)
    # The scheduler takes a worker for dead after five missing reports.
    report_interval_ms: int = constant(500)
    # Each one-shot model's batches are measured so long at its first start: enough for its variants
    # on a CPU. The result is kept in the data folder.
    oneshot_profile_s: float = constant(20.0)

    @model_validator(mode="after")
    def _one_orders_models(self) -> "WorkerConfig":
        if self.oneshot_bytes and self.scheduler_shards > 1:
            raise ValueError(
                f"SYMPHONY_ONESHOT_BYTES {self.oneshot_bytes} needs SYMPHONY_SCHEDULER_SHARDS 1, "
                f"not {self.scheduler_shards}: no shard orders models"
            )
        return self
