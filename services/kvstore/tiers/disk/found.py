"""What a start leaves: blocks as the core takes them in, and a heap without the rest."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from services.kvstore.core import FoundBlocks, Shape
from services.kvstore.tiers.disk import Scan, stored_bytes
from shared.expiry import NS_PER_S

COLLECTED = (700, 3, 10)  # 10 as the second makes the younger ones 7,000 objects: milliseconds


def found_blocks(scan: Scan, now_ns: int, now_s: int) -> FoundBlocks:
    """Blocks of a scan, in the core's time.

    Args:
        now_ns, now_s: the same instant by the core's clock and by the wall's. What was used later
            was used now.
    """
    found = scan.found
    age_s = now_s - np.minimum(found["used_s"], now_s).astype(np.int64)
    number = found["num_layers"].astype(np.int64) << 32 | found["page_bytes"]
    numbers, shape_numbers = np.unique(number, return_inverse=True)
    shapes = [(each >> 32, each & 0xFFFFFFFF) for each in numbers.tolist()]
    return FoundBlocks(
        found["key"].tobytes(),
        found["parent"].tobytes(),
        found["owner"].tobytes(),
        now_ns - age_s * NS_PER_S,
        found["expiry_s"].astype(np.int64) * NS_PER_S,
        [Shape(*each, stored_bytes(*each)) for each in shapes],
        shape_numbers,
    )


@contextmanager
def lasting() -> Iterator[None]:
    """What the body makes is there to stay: the collector looks through none of it, now or later,
    which would take a second for a million objects; and what the body needed and left is given back
    to the system. What comes after is collected in small parts.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*COLLECTED)
        gc.enable()
        ctypes.CDLL(None).malloc_trim(0)
