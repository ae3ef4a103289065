"""What tests of the client share."""

from collections.abc import Iterator

import pytest

from tests.clients.fake_frontend import FakeFrontend, fake_frontend


@pytest.fixture
def frontend() -> Iterator[FakeFrontend]:
    with fake_frontend() as running:
        yield running


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester's own frontend is not asked."""
    for name in ("SYMPHONY_BASE_URL", "SYMPHONY_API_KEY", "NATS_URL", "NATS_NKEY"):
        monkeypatch.delenv(name, raising=False)
