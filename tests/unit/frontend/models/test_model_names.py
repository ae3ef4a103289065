"""Other names of models."""

import pytest

from cli.models.names import check_names
from services.frontend.config import FrontendConfig
from services.frontend.core.models.model_names import ModelNames
from shared.errors import ConfigError


def test_what_a_name_stands_for() -> None:
    served = ["b"]
    names = ModelNames(["a", "x=y"])
    assert names.others == ("a", "x")
    assert names.of("x", lambda: served) == "y" and names.of("z", lambda: served) == "z"
    assert names.of("a", list) == "a", "none was there yet"
    assert names.of("a", lambda: served) == "b"
    assert names.of("a", list) == "b", "it comes back"
    assert names.of("a", lambda: ["b", "c"]) == "a", "of which?"
    assert names.of("a", list) == "a"


@pytest.mark.parametrize("given", ["", "=m", "a="])
def test_what_is_no_name_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--served-model-name"):
        check_names([given], num_models=1)
    with pytest.raises(ValueError, match="write NAME"):
        FrontendConfig(served_model_names=[given])


def test_a_name_of_one_of_several_says_of_which() -> None:
    check_names(["a", "b=c"], num_models=1)
    check_names(["b=c"], num_models=2)
    with pytest.raises(ConfigError, match="a=MODEL"):
        check_names(["a"], num_models=2)


def test_deployed_models_are_named_as_workers_name_them() -> None:
    given = ["/models/my-llama", "Qwen/Qwen3-4B", "demo"]
    config = FrontendConfig(deployed_models=given)
    assert config.deployed_models == ["my-llama", "Qwen/Qwen3-4B", "demo"]
