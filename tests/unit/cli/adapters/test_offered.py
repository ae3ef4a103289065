"""Adapters that a deployment offers are added some at a time, each with its own words."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.adapters import offered
from cli.adapters.offered import OFFERED_AT_ONCE, Offer, offer_all
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import HostId
from shared.runtime.access import NatsAccess
from shared.wire.messages import AdapterAdd, LoraCard
from tests.unit.shared.adapters.adapter_files import small_card

NUM = 3 * OFFERED_AT_ONCE


class Bus:
    """Answers in an order of its own, as many as it is asked at once."""

    def __init__(self) -> None:
        self.refused = ""
        self.num_waiting = self.num_most = 0
        self.is_drained = False

    async def request(self, _: object, add: AdapterAdd, host: str, **__: Any) -> Any:
        assert host == "here" and add.model_id == "m" and add.path == f"/adapters/{add.name}"
        self.num_waiting += 1
        self.num_most = max(self.num_most, self.num_waiting)
        for _turn in range(1 + (7 * int(add.name[1:])) % 5):
            await asyncio.sleep(0)
        self.num_waiting -= 1
        if add.name == self.refused:
            raise InvalidRequest("rank 99")
        return SimpleNamespace(warnings=[f"of {add.name}"])

    async def drain(self) -> None:
        self.is_drained = True


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    made = Bus()

    async def connect(*_: Any, **__: Any) -> Bus:
        return made

    async def bases(*_: Any) -> dict[str, LoraCard]:
        return {"m": small_card()}

    monkeypatch.setattr("cli.adapters.offered.Bus.connect", connect)
    monkeypatch.setattr(offered, "_bases", bases)
    yield made
    assert made.is_drained


def offer() -> list[str]:
    offers = [Offer(f"a{number}", Path(f"/adapters/a{number}")) for number in range(NUM)]
    return offer_all("nats://127.0.0.1:1", NatsAccess(), HostId("here"), offers)


def test_some_are_added_at_once_and_warned_of_in_order(bus: Bus) -> None:
    assert offer() == [f"a{number}: of a{number}" for number in range(NUM)]
    assert bus.num_most == OFFERED_AT_ONCE


def test_one_that_cannot_be_served_is_named(bus: Bus) -> None:
    bus.refused = "a5"
    with pytest.raises(SymphonyError, match=r"^--adapter a5: rank 99$"):
        offer()
