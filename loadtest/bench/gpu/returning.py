"""Sessions that come back to a pool which holds fewer of them; the rest is in host memory."""

import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.gpu.engine import BenchEngine
from loadtest.in_process_engine import InProcessEngine, Submitted
from shared.blocks import BLOCK_TOKENS

NEW_TOKENS = 16  # that a returning turn brings beside its history
REPLY_TOKENS = 8
MEMORY_SHARE = 0.7  # of the folder's free bytes
SESSIONS_MIN = 3


def measure_returning(bench: BenchEngine, folder: Path) -> dict[str, float]:
    """First tokens of sessions that come back, one after another: at once, and announced, each when
    what it needs was prefetched; and how long their first turns took."""
    shape, info = bench.shape, bench.executor.info
    of_session = math.ceil((shape.history + NEW_TOKENS + REPLY_TOKENS) / BLOCK_TOKENS) + 1
    block_bytes = info.num_layers * info.page_bytes
    num_stored = of_session + 4  # of further turns too
    room = int(MEMORY_SHARE * shutil.disk_usage(folder).free) // (num_stored * block_bytes)
    num_sessions = min(shape.sessions, room)
    in_pool = shape.sessions_in_pool * num_sessions // shape.sessions
    if num_sessions < SESSIONS_MIN or not in_pool:
        return {"returning_sessions": 0}
    store = bench.new_store(folder, num_sessions * num_stored)
    engine = bench.new(store, in_pool * of_session * info.num_layers)
    histories = [bench.prompt(shape.history) for _ in range(num_sessions)]
    first = [engine.submit(history, REPLY_TOKENS) for history in histories]
    engine.run(in_turn=True)
    first_s = (first[-1].sent_ns[-1] - first[0].began_ns) / 1e9
    returned = _return(bench, engine, histories, is_announced=False)
    hinted = _return(bench, engine, histories, is_announced=True)
    store.close()
    return {
        "first_turns_s": first_s,
        **_figures("returning", returned, shape.history),
        **_figures("hinted", hinted, shape.history),
        "returning_sessions": num_sessions,
    }


def _return(
    bench: BenchEngine,
    engine: InProcessEngine,
    histories: Sequence[list[int]],
    *,
    is_announced: bool,
) -> list[Submitted]:
    turns = [
        engine.submit(
            [*history, *bench.prompt(NEW_TOKENS)],
            REPLY_TOKENS,
            announced_as=f"s{number}" if is_announced else "",
        )
        for number, history in enumerate(histories)
    ]
    engine.run(in_turn=True)
    return turns


def _figures(name: str, turns: Sequence[Submitted], num_history: int) -> dict[str, float]:
    cached = statistics.mean(turn.num_cached for turn in turns) / num_history
    first_ms = sorted(turn.first_s * 1e3 for turn in turns)
    p90 = first_ms[min(int(0.9 * len(first_ms)), len(first_ms) - 1)]
    return {
        f"{name}_ms": statistics.median(first_ms),
        f"{name}_p90_ms": p90,
        f"{name}_cached_share": cached,
    }
