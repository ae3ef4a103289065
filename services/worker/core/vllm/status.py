"""What a vLLM engine reports of itself, as the worker reports engines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.worker.core.adapters.stats import AdapterStatus
from services.worker.core.engine.status import EngineStatus, EngineTotals, PoolStatus
from services.worker.core.turns.targets import TargetCounts
from services.worker.core.turns.turn import Turn
from services.worker.core.vllm.adapters import AdapterRoom
from services.worker.device.base.executor import ModelInfo


@dataclass(slots=True)
class VllmCounts:
    """What vLLM said last.

    Attributes:
        usage: share of its KV cache that requests hold.
        num_queries, num_hits: prompt tokens looked up in its prefix cache, and found, since the
            start.
        num_preemptions: since the start.
    """

    usage: float = 0.0
    num_queries: int = 0
    num_hits: int = 0
    num_preemptions: int = 0


def status_of(
    info: ModelInfo,
    turns: Sequence[Turn],
    counts: VllmCounts,
    targets: TargetCounts,
    adapters: AdapterStatus,
    num_load_failures: int = 0,
) -> EngineStatus:
    """A snapshot. A turn waits until it has a token: when vLLM begins with it is not said before.

    A block that no request holds counts as free, cached or not: vLLM takes it when it needs it.
    """
    waiting = [turn for turn in turns if turn.trace.first_token_at_ns is None]
    num_held = round(min(max(counts.usage, 0.0), 1.0) * info.num_pages)
    return EngineStatus(
        tokens_max=info.max_model_len,
        num_running=len(turns) - len(waiting),
        num_waiting=len(waiting),
        num_waiting_tokens=sum(len(turn.tokens) for turn in waiting),
        pool=PoolStatus(
            num_pages=info.num_pages,
            num_free=info.num_pages - num_held,
            num_takeable=0,
            num_unsafe=0,
        ),
        totals=EngineTotals(
            num_prefix_queries=counts.num_queries // info.block_tokens,
            num_prefix_hits=counts.num_hits // info.block_tokens,
            num_preemptions=counts.num_preemptions,
            num_pauses=0,
            num_load_failures=num_load_failures,
            busy_ns=0,
            idle_ns=0,
            targets=Counter(targets.totals),
        ),
        adapters=adapters,
        step_models={},
    )


def adapter_status(
    turns: Iterable[Turn], room: AdapterRoom, resident: list[str], num_failures: int
) -> AdapterStatus:
    """Of all turns that are here; they wait and run as `status_of` has it."""
    running, waiting = dict[str, None](), dict[str, None]()
    for turn in turns:
        if (ref := turn.adapter.ref) is not None:
            has_begun = turn.trace.first_token_at_ns is not None
            (running if has_begun else waiting)[ref.name or ref.adapter_hash] = None
    return AdapterStatus(
        lines_max=room.lines_max,
        running=list(running),
        waiting=[name for name in waiting if name not in running],
        resident=resident,
        num_pages=0,
        num_failures=num_failures,
    )
