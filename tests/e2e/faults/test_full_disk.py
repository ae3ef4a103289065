"""A disk that holds one session in six costs turns nothing while host memory has room."""

from collections.abc import Iterator

import httpx
import pytest

from loadtest.deployment import wait_until
from services.kvstore.tiers.disk import stored_bytes
from services.worker.device.emulated import PAGE_BYTES
from shared.blocks import BLOCK_TOKENS
from shared.profiles import load_profile
from tests.cluster import Cluster

NUM_SESSIONS, NUM_BLOCKS = 6, 6  # those blocks are found again; the last token's is computed
NUM_LAYERS = load_profile("zero").num_layers
DISK_BLOCKS = NUM_BLOCKS + 1
DISK = {"SYMPHONY_DISK_BYTES_MAX": str(DISK_BLOCKS * stored_bytes(NUM_LAYERS, PAGE_BYTES))}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("full") / "data", "--emulate", "zero", settings=DISK
    ) as running:
        yield running


def turn(cluster: Cluster, session: int) -> int:
    """Blocks that the turn finds."""
    tokens = [(session + 3) * at % 250 + 5 for at in range(NUM_BLOCKS * BLOCK_TOKENS + 1)]
    body = {"model": "zero", "prompt": tokens, "max_tokens": 1, "session_id": f"s{session}"}
    usage = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).json()["usage"]
    num_cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return num_cached // BLOCK_TOKENS


def test_sessions_are_found_in_memory_and_a_hint_brings_one_into_the_pool(cluster: Cluster) -> None:
    assert [turn(cluster, session) for session in range(NUM_SESSIONS)] == [0] * NUM_SESSIONS

    wait_until(
        lambda: cluster.look()["tiers"]["disk"]["blocks"] == DISK_BLOCKS, "the disk is full", 60
    )
    cluster.wait_restarted("worker-0", cluster.kill("worker-0"))  # its pool is empty now
    assert cluster.look()["tiers"]["gpu"]["pages_clean"] == 0
    hint = {"session_id": "s0", "model_id": "zero", "expected_arrival": 1.0, "priority": 1}
    assert httpx.post(f"{cluster.url}/v1/advisories", json=hint).status_code == 202
    wait_until(
        lambda: cluster.look()["tiers"]["gpu"]["pages_clean"] >= NUM_BLOCKS * NUM_LAYERS,
        "the hinted session is in the pool",
        60,
    )
    assert [turn(cluster, session) for session in range(NUM_SESSIONS)] == [
        NUM_BLOCKS
    ] * NUM_SESSIONS
    assert cluster.look()["tiers"]["disk"]["blocks"] <= DISK_BLOCKS
