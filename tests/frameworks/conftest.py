"""One cluster for others' code."""

import gc
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Some leave connections to the collector, which would complain later."""
    yield
    gc.collect()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("frameworks") / "data") as running:
        yield running
