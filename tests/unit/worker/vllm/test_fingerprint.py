"""Caches that may exchange KV, and those that may not."""

from dataclasses import replace
from hashlib import blake2b

from services.worker.core.vllm.messages import SCHEDULER, Registered
from services.worker.vllm.fingerprint import continue_fingerprint

SCHEDULER_SIDE = Registered(rank=SCHEDULER, model="m", version="0.32")
RANK = Registered(rank=0, layout="float32:[2, 64, 8]:vec")


def fingerprint(weights: bytes, *connectors: Registered) -> str:
    return continue_fingerprint(blake2b(weights), connectors)


def test_only_equal_caches_of_equal_models_are_alike() -> None:
    alike = fingerprint(b"w", SCHEDULER_SIDE, RANK)
    assert alike == fingerprint(b"w", replace(SCHEDULER_SIDE, model="elsewhere"), RANK)
    others = [
        fingerprint(b"v", SCHEDULER_SIDE, RANK),
        fingerprint(b"w", replace(SCHEDULER_SIDE, version="0.31"), RANK),
        fingerprint(b"w", SCHEDULER_SIDE, replace(RANK, layout="float32:[2, 64, 8]:amx")),
        fingerprint(b"w", SCHEDULER_SIDE, RANK, RANK),
        blake2b(b"w").hexdigest(),  # of our own engine, which adds its own kind
    ]
    assert len({alike, *others}) == 1 + len(others)
