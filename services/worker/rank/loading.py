"""Loading a rank's part of a model."""

from functools import partial
from hashlib import blake2b

from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.model import load_model
from services.worker.device.parallel.group import Group
from services.worker.device.parallel.ranks import Loaded, RankSpec
from services.worker.device.parallel.split import Shard, split_module, summed_modules
from services.worker.models.digest import OnBytes
from shared.errors import ConfigError


def load_rank(spec: RankSpec, on_bytes: OnBytes = lambda _: None) -> LoadedModel:
    """Load a model and keep a rank's part of it, on the CPU; see `sum_over`.

    Raises:
        ConfigError: it cannot be loaded or split, and why.
    """
    split = partial(split_module, shard=Shard(spec.rank, spec.num_ranks))
    try:
        model = load_model(
            spec.source, "cpu", spec.dtype, spec.layers, split=split, on_bytes=on_bytes
        )
    except RuntimeError as error:  # of a forward with whole sizes in it
        raise ConfigError(
            f"SYMPHONY_TENSOR_PARALLEL={spec.num_ranks}: {spec.source!r} cannot be computed in "
            f"parts: {error}"
        ) from error
    layout = f"{model.fingerprint}:tensor-parallel:{spec.num_ranks}"  # of pages
    model.fingerprint = blake2b(layout.encode(), digest_size=16).hexdigest()
    return model


def sum_over(group: Group, model: LoadedModel) -> None:
    """Make a rank's passes those of the whole model."""
    model.forward.sum_outputs(summed_modules(model.module, model.num_layers), group.sum)


def loaded(model: LoadedModel) -> Loaded:
    """What all ranks must have loaded alike."""
    return Loaded(model.fingerprint, type(model.forward).__name__)
