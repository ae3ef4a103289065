"""The worker's settings (``SYMPHONY_...``)."""

from typing import Literal

from pydantic import Field

from shared.config import ServiceConfig


class WorkerConfig(ServiceConfig):
    """Attributes:
    models: folders or hub ids to serve, as a JSON list; empty: the bundled demo model.
    emulate: name or file of a latency profile to emulate instead of running a model.
    kv_bytes: memory for KV pages of each model; 0: 1 GiB on a CPU, most of what a GPU has left.
    num_threads: cores to compute on; 0: all.
    """

    models: list[str] = Field(default_factory=list)
    emulate: str = ""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    kv_bytes: int = Field(0, ge=0)
    num_threads: int = Field(0, ge=0)
    prefill_tokens_max: int = Field(0, ge=0)
    turns_running_max: int = Field(64, ge=1)
    write_behind: bool = True
    report_interval_ms: int = Field(500, ge=10)
    drain_ms: int = Field(5000, ge=0)
