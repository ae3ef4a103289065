"""What tests of the client share."""

from collections.abc import Iterator

import pytest

from tests.clients.fake_house import FakeHouse, fake_house


@pytest.fixture
def house() -> Iterator[FakeHouse]:
    with fake_house() as running:
        yield running


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester's own house is not asked."""
    for name in ("SYMPHONY_BASE_URL", "SYMPHONY_API_KEY", "NATS_URL", "NATS_NKEY"):
        monkeypatch.delenv(name, raising=False)
