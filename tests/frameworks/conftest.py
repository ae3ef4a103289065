"""One cluster for others' code, and a fake frontend for hints."""

import gc
from collections.abc import Iterator

import pytest

from symphony_client import SymphonyClient, Workflow
from tests.clients.fake_frontend import FakeFrontend, fake_frontend
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


@pytest.fixture
def frontend() -> Iterator[FakeFrontend]:
    with fake_frontend() as running:
        yield running


@pytest.fixture
def client(frontend: FakeFrontend) -> Iterator[SymphonyClient]:
    with SymphonyClient(frontend.url) as made:
        yield made


@pytest.fixture
def workflow(client: SymphonyClient) -> Iterator[Workflow]:
    with client.workflow("w", "shop", model="m") as made:
        yield made
