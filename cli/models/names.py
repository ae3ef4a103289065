"""What a model is served as, from what `--model` names."""

from pathlib import Path

from cli.models.catalog import DEMO
from services.worker.demo_model import DEMO_MODEL_ID


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
