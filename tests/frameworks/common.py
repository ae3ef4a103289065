"""What the tests of others' code share: a key, a long text, two forms.

The model is the demo model, which has learned nothing: what is right about calls and forms is the
grammar's, so every run is alike.
"""

from importlib.util import find_spec

import pytest
from pydantic import BaseModel, ConfigDict, Field

KEY = "none"
OPENAI_NAME = "gpt-demo"  # of the model: some compact no conversation of one that is not OpenAI's
LONG = "Where to? " * 20  # more than a block, which is there at once


class City(BaseModel):
    """Where somebody is. Closed: in an open one who has learned nothing goes on for ever."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    size: int = Field(ge=0, le=99)


class Weather(BaseModel):
    """How it is there. Anthropic's client leaves limits out of what it sends; here are none."""

    model_config = ConfigDict(extra="forbid")
    is_wet: bool


def is_installed(module: str) -> bool:
    """Whether it can be imported; what it is in may be missing, too."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def needs(module: str) -> list[pytest.MarkDecorator]:
    """Marks of tests that run only where `module` is installed."""
    return [
        pytest.mark.skipif(not is_installed(module), reason=f"{module} is not installed"),
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ]
