"""From settings to one-shot models: which to serve, loaded and profiled."""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.worker.config import WorkerConfig
from services.worker.models.digest import weights_bytes
from services.worker.oneshot.model import OneshotModel, ServedTask, task_of
from services.worker.oneshot.profile import ProfileCache, measure_variants
from shared.errors import ConfigError
from shared.runtime.stages import UNREPORTED, StartStages
from shared.wire.messages import OneshotCard, OneshotVariant, Task

if TYPE_CHECKING:
    from services.worker.oneshot.loaded import LoadedOneshot
    from services.worker.oneshot.torch_model import TorchOneshot

log = logging.getLogger(__name__)

BATCH_MAX_CPU = 16
BATCH_MAX_GPU = 64
SLO_MIN_MS = 50.0
SLO_BATCHES = 3  # of SLO_SIZE inputs
SLO_SIZE = 8


def find_tasks(config: WorkerConfig, models: Sequence[tuple[str, str]]) -> dict[str, ServedTask]:
    """What each model is for, as its files or the settings say.

    Args:
        models: (id, folder or hub id).

    Raises:
        ConfigError: a model is not readable, or quantized, or a setting names one that is not
            served.
    """
    from transformers import AutoConfig

    from services.worker.models.checkpoint import quantization, quantized
    from services.worker.oneshot.pooling import has_pooling

    if unknown := sorted(config.tasks.keys() - {model_id for model_id, _ in models}):
        raise ConfigError(f"SYMPHONY_TASKS names models that are not served: {', '.join(unknown)}")
    tasks: dict[str, ServedTask] = {}
    for model_id, source in models:
        try:
            model_config = AutoConfig.from_pretrained(source)
        except (OSError, ValueError, KeyError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise ConfigError(f"cannot load model {source!r}: {first_line}") from error
        if (how := quantization(Path(source), model_config.to_dict())) is not None:
            raise quantized(source, how)
        if model_id in config.tasks:
            tasks[model_id] = config.tasks[model_id]
            continue
        tasks[model_id] = task_of(model_config, source, has_pooling=has_pooling(source))
    return tasks


def make_oneshot(
    config: WorkerConfig,
    device: str,
    model_id: str,
    source: str,
    task: Task,
    known: OneshotCard | None = None,
    stages: StartStages = UNREPORTED,
) -> OneshotModel:
    """Load a model and measure its batches, or take what was measured at an earlier start. Slow.

    Args:
        known: its card when it was loaded before: if its files are the same, nothing is measured.
    """
    import torch

    from services.worker.oneshot.torch_model import TorchOneshot, load_oneshot

    with stages.stage("load", model_id, weights_bytes(source)):
        loaded = load_oneshot(source, task, device, config.dtype, stages.count)
    variants = variants_of(config, loaded)
    model = TorchOneshot(model_id, loaded, variants, created=int(time.time()))
    if known is not None and known.fingerprint == loaded.fingerprint:
        model.card = known
        return model
    with stages.stage("measure", model_id):
        profile = _profile(config, model, loaded, variants)
    peak_bytes = 0
    if config.oneshot_bytes:
        peak_bytes = model.peak_bytes(profile[-1].variant, len(profile[-1].batch_ns))
    model.set_profile(profile, config.oneshot_slo_ms or default_slo_ms(profile), peak_bytes)
    if device == "cuda":
        torch.cuda.empty_cache()  # what the largest batches took is free for other models
    return model


def variants_of(config: WorkerConfig, loaded: "LoadedOneshot") -> list[int]:
    """The input lengths to batch a model at: the settings', as far as it can take them."""
    from services.worker.oneshot.inputs import TextInputs

    if not isinstance(loaded.inputs, TextInputs):
        return [0]
    tokens_max = loaded.inputs.tokens_max
    return sorted({min(variant, tokens_max) for variant in config.oneshot_variants})


def default_slo_ms(profile: Sequence[OneshotVariant]) -> float:
    """A target that leaves room for batches of 8 at the longest variant: three times their time,
    and at least 50 ms.
    """
    batch_ns = profile[-1].batch_ns
    return max(SLO_MIN_MS, SLO_BATCHES * batch_ns[min(SLO_SIZE, len(batch_ns)) - 1] / 1e6)


def _profile(
    config: WorkerConfig, model: "TorchOneshot", loaded: "LoadedOneshot", variants: list[int]
) -> list[OneshotVariant]:
    import torch

    is_gpu = loaded.module.device.type == "cuda"
    batch_max = config.oneshot_batch_max or (BATCH_MAX_GPU if is_gpu else BATCH_MAX_CPU)
    cache = ProfileCache(config.data_dir / "profiles")
    key: dict[str, object] = {
        "fingerprint": loaded.fingerprint,
        "host": config.host_id,
        "device": torch.cuda.get_device_name() if is_gpu else f"cpu of {os.cpu_count()} cores",
        "dtype": str(loaded.module.dtype),
        "threads": 0 if is_gpu else torch.get_num_threads(),
        "torch": torch.__version__,
        "variants": variants,
        "batch_max": batch_max,
        "budget_s": config.oneshot_profile_s,
    }
    profile = cache.get(key)
    if profile is None:
        name = model.card.model_id
        profile, is_calm = measure_variants(
            model.run_sample, variants, batch_max, config.oneshot_profile_s, name
        )
        if is_calm:  # else it would be wrong for good
            cache.put(key, profile)
    return profile
