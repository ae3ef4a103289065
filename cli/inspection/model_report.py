"""What `symphony doctor` says of a model that `up` would serve, from what is on this machine alone:
what adapters may target, and whether it is computed as transformers computes it.
"""

from importlib.util import find_spec
from pathlib import Path

from cli.inspection.capacity import capacity_line, capacity_of
from cli.models.names import served_as
from cli.models.prepare import find_model
from services.kvstore.core.base.tier_sizes import TierSizes
from services.worker.config import WorkerConfig
from services.worker.load import CPU_KV_BYTES
from shared.errors import ConfigError, SymphonyError
from shared.wire.messages import KvPool, KvStats, LoraCard, LoraTarget


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


def describe_family(source: str, kept: Path, config: WorkerConfig) -> str:
    """The model's family, and in which ways it was verified against transformers. Takes a second,
    and compiles nothing.

    Args, Raises: as `describe_targets`; ConfigError, too, if a worker would refuse it.
    """
    otherwise = "a one-shot model, which transformers itself computes"
    folder, unknown = _generative_folder(source, kept, config, otherwise)
    if folder is None:
        return unknown
    from services.worker.device.verify import verify_source

    try:
        checked = verify_source(folder, config.layers)
    except SymphonyError as error:
        raise ConfigError(f"{source} cannot be served: {error.message}") from None
    if checked is None:
        raise ConfigError(f"{source} cannot be served: transformers has no decoder for its config")
    return (
        f"{checked.family}, computed as transformers computes it (small models of this config, "
        f"{', '.join(checked.ways)}; log-probabilities differ by {checked.worst:.0e} at most)"
    )


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
        return None, "not known before the model is here: `up` fetches it"
    if find_spec("torch") is None:
        return None, "not known without torch, which `up` installs"
    from services.worker.load_oneshot import find_tasks

    model_id = served_as(source)
    named = {name: task for name, task in config.tasks.items() if name == model_id}
    tasks = find_tasks(config.model_copy(update={"tasks": named}), [(model_id, str(folder))])
    return (str(folder), "") if tasks[model_id] == "generate" else (None, otherwise)


def _text_of(card: LoraCard) -> str:
    head = ", ".join(map(_shape_of, card.outer)) if card.outer else "not the head"
    return (
        f"{', '.join(map(_shape_of, card.targets))}, in each of {card.num_layers} layers; {head}; "
        f"ranks up to {card.rank_max}"
    )


def _shape_of(target: LoraTarget) -> str:
    return f"{target.name} {target.num_in} x {target.num_out}"
