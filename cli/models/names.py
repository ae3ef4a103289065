"""What a model is served as, from what `--model` names."""

from collections.abc import Sequence
from pathlib import Path

from cli.models.catalog import DEMO
from services.frontend.core.models.model_names import parse_name
from services.worker.models.demo_model import DEMO_MODEL_ID
from shared.errors import ConfigError


def served_as(source: str) -> str:
    """The model's id: of a folder its name, of a GGUF file that without the ending.

    >>> served_as("demo"), served_as("Qwen/Qwen3-0.6B"), served_as("./some.gguf")
    ('symphony-demo', 'Qwen/Qwen3-0.6B', 'some')
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve().name
    if source == DEMO:
        return DEMO_MODEL_ID
    return path.stem if path.suffix == ".gguf" else source


def check_names(names: Sequence[str], *, num_models: int) -> None:
    """See that what `--served-model-name` says can be meant.

    Args:
        num_models: that are to be served; 0: the default one.

    Raises:
        ConfigError: it is no name, or of no one model.
    """
    for given in names:
        try:
            _, model = parse_name(given)
        except ValueError as error:
            raise ConfigError(f"--served-model-name: {error}") from None
        if model is None and num_models > 1:
            raise ConfigError(
                f"--served-model-name {given}: of which of the {num_models} models? Write "
                f"{given}=MODEL"
            )
