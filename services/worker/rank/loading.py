"""Loading a rank's part of a model."""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b

import torch

from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.model import load_model
from services.worker.device.parallel.ranks import Loaded, RankSpec
from services.worker.device.parallel.split import Shard, split_module, summed_modules
from shared.errors import ConfigError


def load_rank(spec: RankSpec, sum_ranks: Callable[[torch.Tensor], None]) -> LoadedModel:
    """Load a model and keep a rank's part of it, on the CPU.

    Args:
        sum_ranks: see `Group.sum`; called in passes only.

    Raises:
        ConfigError: it cannot be loaded or split, and why.
    """
    split = partial(split_module, shard=Shard(spec.rank, spec.num_ranks))
    try:
        model = load_model(spec.source, "cpu", spec.dtype, spec.layers, split=split)
    except RuntimeError as error:  # of a forward with whole sizes in it
        raise ConfigError(
            f"SYMPHONY_TENSOR_PARALLEL={spec.num_ranks}: {spec.source!r} cannot be computed in "
            f"parts: {error}"
        ) from error
    model.forward.sum_outputs(summed_modules(model.module, model.num_layers), sum_ranks)
    layout = f"{model.fingerprint}:tensor-parallel:{spec.num_ranks}"  # of pages
    model.fingerprint = blake2b(layout.encode(), digest_size=16).hexdigest()
    return model


def loaded(model: LoadedModel) -> Loaded:
    """What all ranks must have loaded alike."""
    return Loaded(model.fingerprint, type(model.forward).__name__)
