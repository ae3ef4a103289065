"""Whether a model that `symphony up` would serve is computed as transformers computes it."""

from importlib.util import find_spec
from pathlib import Path

from cli.inspection.targets import generates
from cli.models.names import served_as
from cli.models.prepare import find_model
from services.worker.config import WorkerConfig
from shared.errors import ConfigError, SymphonyError


def tell_family(source: str, kept: Path, config: WorkerConfig) -> str:
    """For people: its family, and in which ways it was computed and held right. Takes a second, and
    compiles nothing.

    Args:
        source: as `--model` takes it.
        kept: folder of fetched, converted and made models.

    Raises:
        ConfigError: the model's files cannot be read, or a worker would refuse it; says why.
    """
    folder = find_model(source, kept)
    if folder is None:
        return "not known before the model is here: `up` fetches it"
    if find_spec("torch") is None:
        return "not known without torch, which `up` installs"
    if not generates(served_as(source), str(folder), config):
        return "a one-shot model, which transformers itself computes"
    from services.worker.device.verify import verify_source

    try:
        checked = verify_source(str(folder), config.layers)
    except SymphonyError as error:
        raise ConfigError(f"{source} cannot be served: {error.message}") from None
    if checked is None:
        raise ConfigError(f"{source} cannot be served: transformers has no decoder for its config")
    return (
        f"{checked.family}, computed as transformers computes it (small models of this config, "
        f"{', '.join(checked.ways)}; log-probabilities differ by {checked.worst:.0e} at most)"
    )
