"""Deferred admission on an emulated GPU: decodes gain, targets are kept. The simulation holds
its invariants.
"""

import statistics

from loadtest.bench.admission import Arrivals, simulate

from loadtest.sim.timeline import MS
from services.worker.core.limits import EngineLimits
from shared.profiles import PROFILES

BUSY = [
    (number * 210 * MS, 300 + 170 * (number % 7), 40 + 37 * (number % 5)) for number in range(99)
]
TARGET_MS = 2000


def serve(arrivals: Arrivals, *, is_deferred: bool) -> list[tuple[float, float]]:
    """TTFT and TPOT, ms, of every turn on an emulated GPU."""
    limits = EngineLimits(
        max_model_len=8192,
        prefill_tokens_max=2048,
        prefill_admission="deferred" if is_deferred else "eager",
        slo_ttft_ns=TARGET_MS * MS,
    )
    run = simulate(PROFILES["a100-llama3-8b"], limits, arrivals)
    return [(turn.ttft_ms, turn.tpot_ms) for turn in run.turns]


def test_deferring_speeds_decodes_up_and_keeps_the_targets() -> None:
    eager, deferred = serve(BUSY, is_deferred=False), serve(BUSY, is_deferred=True)
    assert max(ttft for ttft, _ in deferred) <= TARGET_MS
    gain = statistics.fmean(t for _, t in deferred) / statistics.fmean(t for _, t in eager)
    assert gain < 0.95


def test_a_lone_user_is_served_at_once() -> None:
    alone = [(number * 60_000 * MS, 700, 100) for number in range(20)]
    assert serve(alone, is_deferred=True) == serve(alone, is_deferred=False)
