"""One tenant asks for adapters to be added far more often than it may; another one goes on.

The house runs the demo model as `symphony up` starts it, with a key for each of the two. All of it
shares this machine with the clients.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from loadtest.adapters import Recipe, modules_in, write_adapter
from loadtest.bench.adapters.house import adapter_settings
from loadtest.bench.adapters.load import PATH
from loadtest.bench.adapters.registering import LOAD
from loadtest.fuzz.house import House, open_house
from loadtest.fuzz.plain_http import ask, request_bytes
from loadtest.http_load import Answers, closed_loop
from services.worker.load import demo_folder
from services.worker.models.demo_model import DEMO_MODEL_ID
from shared.errors import PeerUnavailable

FLOODER, OTHER = "flooder", "other"
ROUNDS = 4  # with the flood and without it, in turn
CONCURRENCY = 2
DISK_BYTES = 1 << 30
BODY = orjson.dumps(
    {"model": DEMO_MODEL_ID, "prompt": "Once upon a time", "max_tokens": 8, "stream": True}
)


@dataclass(frozen=True, slots=True)
class Flood:
    """Attributes:
    folder: of the adapter that is added under ever new names.
    """

    house: House
    folder: Path

    async def measure(self, per_minute: float, round_s: float) -> dict[str, Any]:
        """The other tenant's time to the first token, without and with the flood.

        Raises:
            PeerUnavailable: a request of the other tenant failed.
        """
        await self._ask(round_s)  # warm
        calm, beside = [], []
        answered: Counter[int] = Counter()
        num_sent = 0
        for _ in range(ROUNDS):
            calm += (await self._ask(round_s)).first_s
            flood = asyncio.create_task(self._flood(per_minute, round_s, num_sent, answered))
            beside += (await self._ask(round_s)).first_s
            num_sent = await flood
        before, during = _ms(calm), _ms(beside)
        return {
            "per_minute": round(num_sent / (ROUNDS * round_s) * 60),
            "answers": {str(status): count for status, count in sorted(answered.items())},
            "ttft_ms_before": before,
            "ttft_ms_during": during,
            "ttft_ratio": round(during["p50"] / before["p50"], 3),
        }

    async def _ask(self, seconds: float) -> Answers:
        answers = await closed_loop(
            self.house.port, PATH, BODY, _key(OTHER), concurrency=CONCURRENCY, seconds=seconds
        )
        if answers.num_errors:
            codes = ", ".join(sorted({*map(str, answers.status), *answers.code.values()}))
            raise PeerUnavailable(f"requests of the other tenant failed: {codes}")
        return answers

    async def _flood(
        self, per_minute: float, seconds: float, first: int, answered: Counter[int]
    ) -> int:
        """Additions at a steady rate, whatever becomes of earlier ones; the next one's number."""
        port, number, begun_at = self.house.port, first, time.monotonic()

        async def add(number: int) -> None:
            body = orjson.dumps({"lora_name": f"n{number}", "lora_path": str(self.folder)})
            request = request_bytes("POST", LOAD, port, body, _key(FLOODER), b"Connection: close")
            answered[(await ask(port, request)).status] += 1

        async with asyncio.TaskGroup() as group:
            while (passed_s := time.monotonic() - begun_at) < seconds:
                while number - first < passed_s * per_minute / 60:
                    group.create_task(add(number))
                    number += 1
                await asyncio.sleep(0.01)
        return number


@contextmanager
def open_flood() -> Iterator[Flood]:
    """A house with two tenants, and an adapter of its model.

    Raises:
        PeerUnavailable: it did not come up.
    """
    with TemporaryDirectory(prefix="symphony-flood-") as name:
        keys, sources = Path(name) / "keys.json", Path(name) / "sources"
        scopes = {FLOODER: ["adapters"], OTHER: ["inference"]}
        keys.write_bytes(
            orjson.dumps(
                [{"key": f"key-{who}", "tenant": who, "scopes": its} for who, its in scopes.items()]
            )
        )
        sources.mkdir()
        settings = adapter_settings(sources, DISK_BYTES) | {"SYMPHONY_API_KEYS_FILE": str(keys)}
        with open_house(settings) as house:
            recipe = Recipe(rank=4)
            folder = write_adapter(sources / "x", modules_in(demo_folder(house.directory)), recipe)
            yield Flood(house, folder)


def _key(tenant: str) -> bytes:
    return f"Authorization: Bearer key-{tenant}".encode()


def _ms(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.array(seconds) * 1e3, [50, 99])
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}
