"""Whether a worker would load a model, seen by its config and the headers of its files alone.

``python -m services.worker.dry_load MODEL_ID FOLDER``: in a process of its own, so that what it
imports is gone when it ends.
"""

import sys
from typing import Any

from services.worker.config import WorkerConfig
from services.worker.load_oneshot import find_tasks
from services.worker.models.checkpoint import REFUSED
from services.worker.oneshot.model import ServedTask
from shared.errors import ConfigError, SymphonyError
from shared.runtime.config import load_config
from shared.runtime.lean_imports import import_transformers

ONESHOT = "a one-shot model, which transformers itself computes"


def dry_load(config: WorkerConfig, model_id: str, source: str) -> str:
    """Go through a load without memory for weights; what was seen, for people.

    Args:
        source: folder.

    Raises:
        ConfigError: the model is for nothing, or a tensor is missing, left over or misshapen.
        UnsupportedModelError: this engine does not compute it as transformers does.
    """
    named = {name: task for name, task in config.tasks.items() if name == model_id}
    task = find_tasks(config.model_copy(update={"tasks": named}), [(model_id, source)])[model_id]
    is_generative = task == "generate"
    family = _verified(config, source) if is_generative else ONESHOT
    module = _on_nothing(source, task)
    num_weights = sum(parameter.numel() for parameter in module.parameters())
    return f"{family}; all of its {num_weights:,} weights are there"


def _verified(config: WorkerConfig, source: str) -> str:
    from services.worker.device.verify import verify_source

    checked = verify_source(source, config.layers)  # compiles nothing
    if checked is None:
        raise ConfigError("transformers has no decoder for its config")
    return (
        f"{checked.family}, computed as transformers computes it (small models of this config, "
        f"{', '.join(checked.ways)}; log-probabilities differ by {checked.worst:.0e} at most)"
    )


def _on_nothing(source: str, task: ServedTask) -> Any:
    """The model on torch's meta device, which has shapes and no values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from services.worker.models.weights import load_weights

    if task == "generate":
        return load_weights(AutoModelForCausalLM, source, device="meta")
    from services.worker.oneshot.torch_model import auto_class

    config = AutoConfig.from_pretrained(source)
    is_image = not hasattr(config.get_text_config(), "vocab_size")
    auto = auto_class(task, is_image, config, source)
    return load_weights(auto, source, is_encoder=task == "embed", device="meta")


def _main(model_id: str, source: str) -> int:
    """What was seen on stdout, or why not as one line on stderr and status `REFUSED`."""
    import_transformers()
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        print(dry_load(load_config(WorkerConfig), model_id, source))
    except SymphonyError as error:
        print(error.message, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
