"""What `symphony doctor` says of a model that `up` would serve, from what is on this machine alone:
its files, what it needs and may be adapted by, and whether a worker would load it.
"""

from importlib.util import find_spec
from pathlib import Path

from cli.inspection.capacity import capacity_line, capacity_of
from cli.inspection.model_checks import checkpoint_of, unservable
from cli.inspection.model_memory import check_memory
from cli.models.names import served_as
from cli.models.prepare import find_model
from services.kvstore.core.base.tier_sizes import TierSizes
from services.worker.config import WorkerConfig
from services.worker.load import CPU_KV_BYTES
from shared.errors import ConfigError, SymphonyError
from shared.wire.messages import KvPool, KvStats, LoraCard, LoraTarget

WITHOUT_TORCH = "not known without torch, which `up` installs"


def describe_targets(source: str, kept: Path, config: WorkerConfig) -> str:
    """What an adapter may target: linear layers with the number of their inputs and outputs, and
    the largest rank.

    Args:
        source: as `--model` takes it.
        kept: folder of fetched, converted and made models.

    Raises:
        ConfigError: the model's files cannot be read, or are those of a model for nothing.
    """
    folder, unknown = _generative_folder(source, kept, config, "it takes none, as a one-shot model")
    if folder is None:
        return unknown
    from cli.adapters.offline import card_of

    card = card_of(folder)
    return "it takes none" if card is None else _text_of(card)


def describe_files(source: str, kept: Path, config: WorkerConfig) -> str:
    """How many tensors and bytes its files have, which are whole and not quantized.

    Args, Raises: as `describe_targets`; ConfigError, too, if a worker would refuse them.
    """
    folder = find_model(source, kept)
    if folder is None:
        return _not_here(source)
    checkpoint = checkpoint_of(source, folder, config)
    if not checkpoint.num_bytes:
        return "its weights are not here yet: `up` fetches them"
    count = f"{checkpoint.num_tensors:,} tensors, " if checkpoint.num_tensors else ""
    return f"{count}{checkpoint.num_bytes / 1e6:,.1f} MB"


def describe_memory(source: str, kept: Path, config: WorkerConfig) -> str:
    """What it needs of this machine's memory, or of a GPU's.

    Args, Raises: as `describe_files`.
    """
    folder = find_model(source, kept)
    if folder is None:
        return _not_here(source)
    return check_memory([checkpoint_of(source, folder, config)], config)


def describe_family(source: str, kept: Path, config: WorkerConfig) -> str:
    """The model's family, in which ways it was verified against transformers, and that all of its
    weights are there. Takes some seconds, and compiles nothing.

    Args, Raises: as `describe_files`.
    """
    folder = find_model(source, kept)
    if folder is None:
        return _not_here(source)
    if find_spec("torch") is None:
        return WITHOUT_TORCH
    from services.worker.dry_load import dry_load

    try:
        return dry_load(config, served_as(source), str(folder))
    except SymphonyError as error:
        raise unservable(source, error.message) from None


def describe_kv(source: str, kept: Path, config: WorkerConfig, sizes: TierSizes) -> str:
    """How many tokens and sessions each tier would hold of the model, if of nothing else.

    Args, Raises: as `describe_targets`.
    """
    folder, unknown = _generative_folder(source, kept, config, "a one-shot model has no KV")
    if folder is None:
        return unknown
    import torch
    from transformers import AutoConfig

    from cli.adapters.offline import page_shape
    from kernels.kv_int8.torch_ops import stored_bytes

    try:
        text = AutoConfig.from_pretrained(folder).get_text_config()
        shape, num_layers = page_shape(text), text.num_hidden_layers
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{source}: {str(error).strip().splitlines()[0]}") from None
    dtype = (
        text.dtype if config.dtype == "auto" else getattr(torch, config.dtype)
    ) or torch.float32
    page_bytes = shape.numel() * dtype.itemsize
    pool_bytes = config.kv_bytes
    if not pool_bytes and (config.device == "cpu" or not torch.cuda.is_available()):
        pool_bytes = CPU_KV_BYTES
    pool = KvPool(
        model=source,
        num_blocks=pool_bytes // (page_bytes * num_layers),
        num_layers=num_layers,
        page_bytes=page_bytes if config.kv_stored_dtype == "model" else stored_bytes(shape),
    )
    store = KvStats(
        arena_bytes_max={str(pool.page_bytes): sizes.arena_bytes}, disk_bytes_max=sizes.disk_bytes
    )
    return capacity_line(*capacity_of([pool], [store]))


def _generative_folder(
    source: str, kept: Path, config: WorkerConfig, otherwise: str
) -> tuple[str | None, str]:
    """Where the model's files are, if it generates text; else None and what to say instead."""
    folder = find_model(source, kept)
    if folder is None:
        return None, _not_here(source)
    if find_spec("torch") is None:
        return None, WITHOUT_TORCH
    from services.worker.load_oneshot import find_tasks

    model_id = served_as(source)
    named = {name: task for name, task in config.tasks.items() if name == model_id}
    tasks = find_tasks(config.model_copy(update={"tasks": named}), [(model_id, str(folder))])
    return (str(folder), "") if tasks[model_id] == "generate" else (None, otherwise)


def _not_here(source: str) -> str:
    verb = "converts" if source.endswith(".gguf") else "fetches"
    return f"not known before the model is here: `up` {verb} it"


def _text_of(card: LoraCard) -> str:
    head = ", ".join(map(_shape_of, card.outer)) if card.outer else "not the head"
    return (
        f"{', '.join(map(_shape_of, card.targets))}, in each of {card.num_layers} layers; {head}; "
        f"ranks up to {card.rank_max}"
    )


def _shape_of(target: LoraTarget) -> str:
    return f"{target.name} {target.num_in} x {target.num_out}"
