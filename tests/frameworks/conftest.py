"""One cluster for others' code."""

import gc
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.frameworks.common import OPENAI_NAME


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Some leave connections to the collector, which would complain later."""
    yield
    gc.collect()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("frameworks") / "data"
    with Cluster(folder, "--served-model-name", OPENAI_NAME) as running:
        yield running
