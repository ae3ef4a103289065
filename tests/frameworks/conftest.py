"""One house for others' code."""

import gc
from collections.abc import Iterator

import pytest

from tests.e2e.house import House


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Some leave connections to the collector, which would complain later."""
    yield
    gc.collect()


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("frameworks") / "data") as running:
        yield running
