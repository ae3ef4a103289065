"""From settings to executors: what this worker serves."""

import atexit
import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from services.worker.config import WorkerConfig
from services.worker.device.base.executor import Executor
from services.worker.device.emulated import EmulatedExecutor
from services.worker.device.near_gpu import bind_near_gpu
from services.worker.device.thread import DeviceThread
from services.worker.load_oneshot import find_tasks, make_oneshot
from services.worker.models.demo_model import DEMO_MODEL_ID, make_demo_model
from services.worker.models.digest import weights_bytes
from services.worker.oneshot.emulated import EmulatedOneshot
from services.worker.oneshot.model import LoadableOneshot, OneshotModel, ServedTask
from services.worker.ports import OnMoved, TextModel, VllmModel
from services.worker.vllm.protocol import VllmEngine
from services.worker.vllm.versions import check_installed
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError
from shared.profiles import LatencyProfile
from shared.runtime.lean_imports import import_transformers
from shared.runtime.stages import UNREPORTED, StartStages
from shared.wire.messages import OneshotCard, Task
from shared.zoo import ZooModel, parse_emulation

if TYPE_CHECKING:  # torch comes with it
    from services.worker.device.assist.host_crew import HostCrew
    from services.worker.device.assist.stream_crew import StreamCrew
    from services.worker.device.decoder.loaded_model import LoadedModel

CPU_KV_BYTES = 1 << 30
ASSIST_TOKENS_MAX = 512
ASSIST_HELPERS = 8  # beside a GPU, where there are cores enough
CORES_LEFT = 2  # of which, to the worker itself


async def load_models(
    stages: StartStages,
    config: WorkerConfig,
    thread: DeviceThread,
    on_moved: Callable[[str], OnMoved],
) -> AsyncIterator[TextModel | VllmModel | OneshotModel | LoadableOneshot]:
    """Every model of the configuration, loaded on the device's thread. One-shot models come first:
    the KV pool takes what they leave of a GPU. Those that are loaded on order are measured.

    Raises:
        ConfigError: a model or a setting cannot be used.
    """
    check_ranks(config, "cpu")  # of a real model's device later
    if config.engine == "vllm":
        for model_id, source in vllm_models(config):
            with stages.stage("vllm", model_id):
                engine = await thread.run(partial(_start_vllm, config, model_id, source))
            yield VllmModel(engine)
        return
    on_order = bool(config.oneshot_bytes)
    if config.emulate:
        emulation = parse_emulation(config.emulate)
        for number, profile in enumerate(emulation.generative):
            yield TextModel(number, make_emulated(config, profile, on_moved(profile.name)))
        for oneshot in make_emulated_oneshots(config, emulation.oneshot):
            yield LoadableOneshot(oneshot.card, partial(_same, oneshot)) if on_order else oneshot
        return
    plan = await thread.run(partial(plan_models, config, stages))
    for model_id, source, task in plan:
        if task != "generate":
            make_one = partial(make_real_oneshot, config, model_id, source, task)
            made = await thread.run(partial(make_one, stages))
            if on_order:
                made.close()
                yield LoadableOneshot(made.card, partial(make_one, known=made.card))
            else:
                yield made
    for number, (model_id, source, task) in enumerate(plan):
        if task == "generate":
            make = partial(make_real, config, model_id, source, on_moved(model_id), stages)
            yield TextModel(number, await thread.run(make))


def vllm_models(config: WorkerConfig) -> list[tuple[str, str]]:
    """(id, folder or hub id) of every model that vLLM is to serve.

    Raises:
        ConfigError: something is to be served that vLLM does not.
    """
    if config.emulate:
        raise ConfigError("SYMPHONY_ENGINE='vllm': emulated models are the other engine's")
    _check_generative("SYMPHONY_ENGINE='vllm'", config.tasks)
    if not config.models:
        make_demo_model(demo_folder(config.data_dir))
    return model_ids(config)


def _check_generative(what: str, tasks: Mapping[str, ServedTask]) -> None:
    """See that all models are for text, as a setting asks.

    Args:
        what: the setting.
        tasks: by model.

    Raises:
        ConfigError: one is not.
    """
    for name, task in sorted(tasks.items()):
        if task != "generate":
            raise ConfigError(f"{what} generates only: {name} is for {task!r}")


def _start_vllm(config: WorkerConfig, model_id: str, source: str) -> VllmEngine:
    check_installed()  # before what takes its modules
    from services.worker.vllm_engine import start_engine

    return start_engine(config, model_id, source)


def model_ids(config: WorkerConfig) -> list[tuple[str, str]]:
    """(id, folder or hub id) of every real model to serve.

    A local folder is served under its name, a hub model under its hub id.
    """
    if not config.models:
        return [(DEMO_MODEL_ID, str(demo_folder(config.data_dir)))]
    ids = [(Path(s).name if Path(s).is_dir() else s, s) for s in config.models]
    names = [model_id for model_id, _ in ids]
    if len(set(names)) != len(names):
        raise ConfigError(f"two models would have the same id: {', '.join(names)}")
    return ids


def demo_folder(data_dir: Path) -> Path:
    """Where the bundled demo model is, or will be."""
    return data_dir / "models" / DEMO_MODEL_ID


def plan_models(
    config: WorkerConfig, stages: StartStages = UNREPORTED
) -> list[tuple[str, str, ServedTask]]:
    """(id, folder or hub id, task) of every real model to serve (slow: reads their configs).

    Raises:
        ConfigError: a model is not readable or for none of the tasks, or two have one id, or ranks
            are to compute a one-shot model.
    """
    ids = model_ids(config)
    if not config.models:
        return [(model_id, source, "generate") for model_id, source in ids]
    with stages.stage("import"), importing():
        tasks = find_tasks(config, ids)
    if config.tensor_parallel > 1:
        _check_generative(_ranks_setting(config), tasks)
    return [(model_id, source, tasks[model_id]) for model_id, source in ids]


def make_emulated(config: WorkerConfig, profile: LatencyProfile, on_moved: OnMoved) -> Executor:
    """An emulated generative model.

    Raises:
        ConfigError: a pool of true pages would not hold two blocks, or pages are to be rounded.
    """
    if config.kv_stored_dtype != "model":
        raise ConfigError(
            f"SYMPHONY_KV_STORED_DTYPE={config.kv_stored_dtype!r}: pages of emulated models hold "
            "no numbers that could be rounded"
        )
    folder = make_demo_model(demo_folder(config.data_dir))
    pool_bytes = (config.kv_bytes or CPU_KV_BYTES) if config.true_pages else None
    if pool_bytes is not None:
        _check_pool(pool_bytes, profile.page_bytes(BLOCK_TOKENS), profile.num_layers, profile.name)
    length = model_len(config, profile.max_model_len, profile.name)
    profile = replace(profile, max_model_len=length)
    return EmulatedExecutor(profile, str(folder), on_moved, pool_bytes, config.link_mb_s * 1e6)


def model_len(config: WorkerConfig, own: int, model_id: str) -> int:
    """How many tokens a prompt and its reply may have together.

    Args:
        own: as many as the model can take.

    Raises:
        ConfigError: the setting is more than that.
    """
    if config.max_model_len > own:
        raise ConfigError(
            f"SYMPHONY_MAX_MODEL_LEN={config.max_model_len}: {model_id!r} takes {own} tokens"
        )
    return config.max_model_len or own


def make_emulated_oneshots(
    config: WorkerConfig, profiles: Sequence[ZooModel]
) -> list[OneshotModel]:
    """Emulated one-shot models, which share the demo model's tokenizer."""
    folder = make_demo_model(demo_folder(config.data_dir))
    created = int(time.time())
    return [
        EmulatedOneshot(profile, str(folder), config.oneshot_batch_max, created)
        for profile in profiles
    ]


@contextmanager
def importing() -> Iterator[None]:
    """Modules are no garbage: to look through them again and again is a seventh of a start."""
    gc.disable()
    try:
        import_transformers()
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # some libraries complain of what is left at the end
        gc.enable()


def make_real(
    config: WorkerConfig,
    model_id: str,
    source: str,
    on_moved: OnMoved,
    stages: StartStages = UNREPORTED,
) -> Executor:
    """Load a generative model (slow: reads all its weights) and make its page pool."""
    with stages.stage("import"), importing():
        from services.worker.device.cpu.torch_executor import TorchExecutor
        from services.worker.device.model import load_model

    if model_id == DEMO_MODEL_ID and not config.models:
        make_demo_model(Path(source))
    if config.layers == "invariant" and config.kv_stored_dtype != "model":
        raise ConfigError(
            "SYMPHONY_LAYERS='invariant' with "
            f"SYMPHONY_KV_STORED_DTYPE={config.kv_stored_dtype!r}: "
            "what was stored would be rounded, and what was computed again would not"
        )
    device = _prepare_device(config)
    if config.tensor_parallel > 1:
        check_ranks(config, device)
        return _make_ranks(config, model_id, source, on_moved, stages)
    with stages.stage("load", model_id, weights_bytes(source)):
        model = load_model(
            source, device, config.dtype, config.layers, config.kv_stored_dtype,
            on_bytes=stages.count,
        )  # fmt: skip
    model.max_model_len = model_len(config, model.max_model_len, model_id)
    if device == "cuda":
        return _make_cuda(config, model, model_id, on_moved, stages)
    num_pages = _num_pages(config.kv_bytes or CPU_KV_BYTES, model, model_id)
    crew = _make_crew(config, model)
    executor = TorchExecutor(model, model_id, num_pages, on_moved, config.link_mb_s * 1e6, crew)
    with stages.stage("compile", model_id):
        executor.warm_up()
    return executor


def _make_ranks(
    config: WorkerConfig, model_id: str, source: str, on_moved: OnMoved, stages: StartStages
) -> Executor:
    """Load a model over several processes, of which this one is the first rank.

    Raises:
        ConfigError: the model cannot be split, or a rank does not start.
    """
    from services.worker.device.cpu.torch_executor import TorchExecutor
    from services.worker.device.parallel.ranks import Ranks, RankSpec
    from services.worker.rank.loading import load_rank, loaded, sum_over

    num_ranks, num_threads = config.tensor_parallel, _num_threads(config)
    spec = RankSpec(model_id, source, config.dtype, config.layers, 0, num_ranks, num_threads)
    ranks = Ranks(spec)
    with ExitStack() as on_error:
        on_error.callback(ranks.close)
        ranks.start()
        with stages.stage("load", model_id, weights_bytes(source)):
            model = load_rank(spec, stages.count)
            model.max_model_len = model_len(config, model.max_model_len, model_id)
            num_pages = _num_pages(config.kv_bytes or CPU_KV_BYTES, model, model_id, num_ranks)
            sum_over(ranks.meet(loaded(model), num_pages), model)
        on_error.pop_all()
    link = config.link_mb_s * 1e6
    executor = TorchExecutor(model, model_id, num_pages, on_moved, link, ranks=ranks)
    with stages.stage("compile", model_id):
        executor.warm_up()
    return executor


def check_ranks(config: WorkerConfig, device: str) -> None:
    """See that the other settings go with several ranks, where there are to be some.

    Args:
        device: that models are computed on.

    Raises:
        ConfigError: one does not.
    """
    if config.tensor_parallel == 1:
        return
    what = _ranks_setting(config)
    if config.engine == "vllm":
        raise ConfigError(f"{what}: vLLM takes `tensor_parallel_size` in SYMPHONY_VLLM_ARGS")
    if device != "cpu":
        raise ConfigError(
            f"{what}: ranks are on the CPU only; on several GPUs SYMPHONY_ENGINE='vllm' serves, "
            "with `tensor_parallel_size` in SYMPHONY_VLLM_ARGS"
        )
    for name, value in (
        ("EMULATE", config.emulate),
        ("LAYERS", config.layers if config.layers == "invariant" else ""),
        ("KV_STORED_DTYPE", config.kv_stored_dtype if config.kv_stored_dtype == "int8" else ""),
    ):
        if value:
            raise ConfigError(f"{what} does not go with SYMPHONY_{name}={value!r}")


def _ranks_setting(config: WorkerConfig) -> str:
    return f"SYMPHONY_TENSOR_PARALLEL={config.tensor_parallel}"


def _make_crew(config: WorkerConfig, model: "LoadedModel") -> "HostCrew | None":
    """Helpers, where they can be of use: an arena as near as the pool is waited for. They read
    adapters there, which it has only where pages are stored as they are."""
    is_wanted = config.lora_start == "assist" or (config.lora_start == "auto" and config.link_mb_s)
    if not is_wanted or model.lora is None or model.stored_form is not None or model.is_invariant:
        return None  # helpers sum up otherwise than the device does
    from services.worker.device.assist.host_crew import HostCrew
    from services.worker.device.assist.orders import Spec

    num_helpers = config.num_threads or len(os.sched_getaffinity(0))
    spec = Spec(model.lora, model.dtype, tuple(model.lora_sites), ASSIST_TOKENS_MAX)
    return HostCrew(spec, num_helpers)


def _make_stream_crew(config: WorkerConfig, model: "LoadedModel") -> "StreamCrew | None":
    """Helpers beside a GPU, where they are asked for: `auto` streams and waits there, as long as
    nothing shows that starts with helpers are faster."""
    is_wanted = config.lora_start == "assist"
    if not is_wanted or model.lora is None or model.stored_form is not None:
        return None
    from services.worker.device.assist.orders import Spec
    from services.worker.device.gpu.cuda import cuda_crew

    num_cores = len(os.sched_getaffinity(0)) - CORES_LEFT
    num_helpers = min(max(num_cores, 1), ASSIST_HELPERS)
    spec = Spec(
        model.lora, model.dtype, tuple(model.lora_sites), ASSIST_TOKENS_MAX, is_streamed=True
    )
    return cuda_crew(spec, num_helpers, model.device)


def _make_cuda(
    config: WorkerConfig,
    model: "LoadedModel",
    model_id: str,
    on_moved: OnMoved,
    stages: StartStages,
) -> Executor:
    # Only here: a worker on a CPU does not wait for what a GPU needs.
    from services.worker.device.gpu.cuda import cuda_executor, free_bytes

    kv_bytes = config.kv_bytes
    if not kv_bytes:
        free = free_bytes(model, config.turns_running_max) - config.oneshot_bytes
        kv_bytes = max(int(free * config.gpu_memory_share), 0)
    num_pages = _num_pages(kv_bytes, model, model_id)
    crew = _make_stream_crew(config, model)
    with stages.stage("compile", model_id):
        executor = cuda_executor(
            model, model_id, num_pages, config.turns_running_max, on_moved, crew=crew
        )
    with stages.stage("record", model_id):
        executor.warm_up()
    return executor


def _num_pages(kv_bytes: int, model: "LoadedModel", model_id: str, num_ranks: int = 1) -> int:
    page_bytes = model.page_bytes * num_ranks
    _check_pool(kv_bytes, page_bytes, model.num_layers, model_id)
    return kv_bytes // page_bytes


def _check_pool(kv_bytes: int, page_bytes: int, num_layers: int, model_id: str) -> None:
    if kv_bytes // page_bytes < 2 * num_layers:
        raise ConfigError(
            f"SYMPHONY_KV_BYTES={kv_bytes} holds not even two blocks of {model_id}: "
            f"one takes {page_bytes * num_layers} bytes"
        )


def make_real_oneshot(
    config: WorkerConfig,
    model_id: str,
    source: str,
    task: Task,
    stages: StartStages = UNREPORTED,
    known: OneshotCard | None = None,
) -> OneshotModel:
    """Load a one-shot model and profile it (slow)."""
    device = _prepare_device(config)
    return make_oneshot(config, device, model_id, source, task, known, stages)


def _same(model: OneshotModel) -> OneshotModel:
    """Nothing is loaded of what is emulated."""
    return model


def _prepare_device(config: WorkerConfig) -> str:
    from services.worker.device.cpu.threads import limit_threads

    device = _device(config)
    if device == "cpu":
        limit_threads(_num_threads(config))
    else:
        bind_near_gpu()
    return device


def _num_threads(config: WorkerConfig) -> int:
    """Of each process that computes."""
    return max((config.num_threads or os.cpu_count() or 1) // config.tensor_parallel, 1)


def _device(config: WorkerConfig) -> str:
    import torch

    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("SYMPHONY_DEVICE='cuda': no CUDA device is available")
    return config.device
