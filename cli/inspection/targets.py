"""What an adapter may target on a model that `symphony up` would serve: from its config, and what
is on this machine alone.
"""

from importlib.util import find_spec
from pathlib import Path

from cli.models.names import served_as
from cli.models.prepare import find_model
from services.worker.config import WorkerConfig
from shared.wire.messages import LoraCard, LoraTarget


def tell_targets(source: str, kept: Path, config: WorkerConfig) -> str:
    """For people: linear layers with the number of their inputs and outputs, and the largest rank.

    Args:
        source: as `--model` takes it.
        kept: folder of fetched, converted and made models.

    Raises:
        ConfigError: the model's files cannot be read, or are those of a model for nothing.
    """
    folder = find_model(source, kept)
    if folder is None:
        return "not known before the model is here: `up` fetches it"
    if find_spec("torch") is None:
        return "not known without torch, which `up` installs"
    if not generates(served_as(source), str(folder), config):
        return "it takes none, as a one-shot model"
    from cli.adapters.offline import card_of

    card = card_of(str(folder))
    return "it takes none" if card is None else _words_of(card)


def generates(model_id: str, folder: str, config: WorkerConfig) -> bool:
    """Whether a worker serves the model for text.

    Raises:
        ConfigError: its files cannot be read, or are those of a model for nothing.
    """
    from services.worker.load_oneshot import find_tasks

    named = {name: task for name, task in config.tasks.items() if name == model_id}
    tasks = find_tasks(config.model_copy(update={"tasks": named}), [(model_id, folder)])
    return tasks[model_id] == "generate"


def _words_of(card: LoraCard) -> str:
    head = ", ".join(map(_shape_of, card.outer)) if card.outer else "not the head"
    return (
        f"{', '.join(map(_shape_of, card.targets))}, in each of {card.num_layers} layers; {head}; "
        f"ranks up to {card.rank_max}"
    )


def _shape_of(target: LoraTarget) -> str:
    return f"{target.name} {target.num_in} x {target.num_out}"
