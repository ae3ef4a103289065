"""A session whose KV is stored as int8: another worker goes on from it, and one that stores what
the model computes finds nothing of it. Real workers, kvstore and disk around a tiny random model.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Server
from tests.integration.harness import connected
from tests.integration.kvstore.cluster import Place, kvstore
from tests.integration.worker.test_adapters import CACHED_TOKENS, Frontend, Turn, until_over, worker
from tests.unit.worker.device.lora.test_lora import BASE
from tests.unit.worker.device.test_torch_executor import prompt, save_model

OFF_MAX = 0.02  # in log-probabilities, by what is rounded


@pytest.fixture
def place(nats_server: Server, redis_server: Server, tmp_path: Path) -> Place:
    return Place(nats_server, redis_server, tmp_path, {"arena_bytes": 32 * 1024**2})


def test_a_session_goes_on_from_int8_and_no_other_form_meets_it(place: Place) -> None:
    save_model(place.config.data_dir / "base", "llama")
    first = Turn(BASE, None, prompt(2, 90), 45)

    async def scenario() -> tuple[Turn, Turn]:
        async with connected(place.nats.url) as bus, kvstore(place):
            frontend = Frontend(bus)
            await frontend.listen()
            async with worker(place, "0", kv_stored_dtype="int8"):
                await frontend.place([first], "h1-w0")
                await until_over([first])
            from_int8 = Turn(BASE, None, [*first.prompt, *first.said, *prompt(3, 15)], 10)
            computed = replace(from_int8, said=[], logprobs=[])
            async with worker(place, "1", kv_stored_dtype="int8"):
                await frontend.place([from_int8], "h1-w1")
                await until_over([from_int8])
            async with worker(place, "2"):
                await frontend.place([computed], "h1-w2")
                await until_over([computed])
        return from_int8, computed

    from_int8, computed = asyncio.run(scenario())
    assert (from_int8.cached_tokens, computed.cached_tokens) == (CACHED_TOKENS, 0)
    assert from_int8.said == computed.said
    off = [
        abs((ours or 0.0) - (exact or 0.0))
        for ours, exact in zip(from_int8.logprobs, computed.logprobs, strict=True)
    ]
    assert 1e-6 < max(off) < OFF_MAX, "it is rounded, and no more than that"
