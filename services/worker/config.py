"""The worker's settings (``SYMPHONY_...``)."""

from typing import Annotated, Literal

from pydantic import Field

from services.worker.core.limits import AdmissionName, LoraStart, StoredDtype
from services.worker.oneshot.model import ServedTask
from shared.config import ServiceConfig
from shared.eviction import EvictionName
from shared.messages import SLO_MS_MAX


class WorkerConfig(ServiceConfig):
    """Attributes:
    models: folders or hub ids to serve, as a JSON list; empty: the bundled demo model.
    tasks: what models are for where their own files leave it open or say otherwise, as a JSON
        object of ids.
    emulate: latency profiles to emulate instead of running models; see `shared.zoo`.
    true_pages: emulated pages are as large as the profile's model would have them, in a pool of
        `kv_bytes`; else they are small, and the pool has as many as the profile says.
    max_model_len: tokens of a prompt and its reply together; 0: as many as each model for text can
        take, which is the most that it may be.
    kv_bytes: memory for KV pages of each model; 0: 1 GiB on a CPU, a share of what a GPU has left.
    gpu_memory_share: of what a GPU has left beside weights and the largest step, for KV pages.
    kv_stored_dtype: what KV is stored as outside of the pool: what the `model` computes, or `int8`,
        rounded to half of bf16's bytes.
    eviction: which pages make room, see `shared.eviction`.
    cooperative: what no turn runs on stays in the pool until its pages are needed, and announced
        turns are brought there; else only as far as the arena.
    num_threads: cores to compute on; 0: all.
    layers: `fast` ones in place of transformers' own where they compute the same, or `plain`; or
        `invariant`, whose answers do not depend on what else is computed with them.
    oneshot_variants: input lengths, tokens, that text models are batched at; longer ones than a
        model can take are left out, and its own limit is added.
    oneshot_batch_max: largest batch of a one-shot model; 0: 16 on a CPU, 64 on a GPU, and as many
        as the target allows when emulated.
    oneshot_slo_ms: target of requests that name none; 0: three times a batch of 8 at the longest
        variant, at least 50.
    oneshot_profile_s: time to measure each one-shot model's batches in, at its first start.
    oneshot_queue_max: batches held at a time; more are refused.
    oneshot_pull_ms: how long after its expected start a batch waits for inputs.
    prefill_admission: `eager`, as soon as there is room, or `deferred`, as late as targets allow.
    layerwise: passes begin while later layers of a prompt's history are loading; off, to see
        what that is worth.
    slo_ttft_ms: target for the time to the first token of turns that bring none; 0: none.
    lora_start: how turns begin whose adapter is loading: `wait` for all of it, `stream` its
        layers behind the pass where they come in time, `assist` by computing on the host what is
        not there, or `auto`, the best that there is.
    assist_helpers: processes for that; 0: one a core, beside a GPU at most eight.
    link_mb_s: on a CPU, and of emulated models, loads into the KV pool take as long as over a link
        of so many MB/s; 0: as fast as memory is.
    """

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
    eviction: EvictionName = "layer"
    cooperative: bool = True
    num_threads: int = Field(0, ge=0)
    layers: Literal["fast", "plain", "invariant"] = "fast"
    prefill_tokens_max: int = Field(0, ge=0)
    turns_running_max: int = Field(64, ge=1)
    prefill_admission: AdmissionName = "eager"
    layerwise: bool = True
    slo_ttft_ms: float = Field(2000.0, ge=0)
    lora_start: LoraStart = "auto"
    assist_helpers: int = Field(0, ge=0)
    link_mb_s: float = Field(0.0, ge=0)
    write_behind: bool = True
    report_interval_ms: int = Field(500, ge=10)
    drain_ms: int = Field(5000, ge=0)
    oneshot_variants: list[Annotated[int, Field(ge=1)]] = Field(
        [32, 64, 128, 256, 512], min_length=1
    )
    oneshot_batch_max: int = Field(0, ge=0, le=1024)
    oneshot_slo_ms: float = Field(0.0, ge=0, le=SLO_MS_MAX)
    oneshot_profile_s: float = Field(20.0, ge=0)
    oneshot_queue_max: int = Field(16, ge=1)
    oneshot_pull_ms: int = Field(50, ge=1)
