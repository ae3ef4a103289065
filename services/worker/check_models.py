"""``python -m services.worker.check_models SOURCE...``: whether workers will find all weights of
models, by their files' headers, before anything is started. What it loads is gone when it ends.
"""

import sys
from typing import Any

from services.worker.config import WorkerConfig
from services.worker.load import plan_models
from services.worker.models.weights import load_weights
from services.worker.oneshot.model import ServedTask
from shared.errors import SymphonyError
from shared.runtime.config import load_config


def check_model(source: str, task: ServedTask) -> None:
    """See that a model has all of its weights and no others. No weight is read.

    Raises:
        ConfigError: it has not, or it cannot be read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    without_values: dict[str, Any] = {"device_map": "meta", "dtype": "auto"}
    if task == "generate":
        load_weights(AutoModelForCausalLM, source, **without_values)
        return
    from services.worker.oneshot.torch_model import auto_class

    config = AutoConfig.from_pretrained(source)
    is_image = not hasattr(config.get_text_config(), "vocab_size")
    auto = auto_class(task, is_image, config, source)
    load_weights(auto, source, is_encoder=task == "embed", **without_values)


def main() -> int:
    """A failure as one line on stderr and status 1."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        config = load_config(WorkerConfig).model_copy(update={"models": sys.argv[1:]})
        for _, source, task in plan_models(config):
            check_model(source, task)
    except SymphonyError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
