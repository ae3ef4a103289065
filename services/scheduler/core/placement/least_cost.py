"""Least cost (`cost.py`): our policy, equal to the paper's balanced load on equal workers."""

from collections.abc import Collection
from typing import ClassVar

from services.scheduler.core.base.effects import PlacementReason
from services.scheduler.core.fleet.kinds import GUESSED
from services.scheduler.core.fleet.mix import NO_MIX, Adapter
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS, GUESSED_LORA, Speeds
from services.scheduler.core.placement.cost import BROKEN_MS, Cost, TurnWork, cost_of
from services.scheduler.core.placement.history import History
from services.scheduler.core.placement.policy import Demand, PlacementPolicy, burden
from shared.wire.messages import AdapterRef

SOON_NS = 10_000_000_000  # until an announced turn without a time arrives (paper: 11.3 s)
RUN_NS = 5_000_000_000  # time after which half of the turns that run now have ended
STAY_SHARE = 0.1  # of its cost that a session must save to leave its worker
STAY_MS = 5.0  # in addition: the error of the measurements
SENT_MS = 10.0  # total cost of cancelling a turn and sending it elsewhere
HERE_SHARE = 0.25  # weight of expected turns for one that is here: they can still go elsewhere
ADAPTER_MS = 50.0  # to find an adapter, where no load was measured


class LeastCost(PlacementPolicy):
    """The worker where a turn costs least, including the delay of other turns.

    Load is the turns that will run beside it: running ones, weighted less the later it arrives, and
    expected ones, weighted more the closer they are in time. History costs the time of its transfer
    or recomputation; what can be prefetched before the turn arrives costs almost nothing. So
    announced sessions go where there is room, and unannounced ones stay with their KV while that is
    cheaper. A session stays with its worker unless another is better by a margin. Turns of more
    than the usual priority count each other twice: other turns can yield to them. Adapters make
    steps longer by their ranks or bytes, whichever explains the worker's own steps best; a target
    that would be missed, the turn's or that of one beside it, costs more than anything else.

    Of workers that have room for the turn; else pages only break ties. Sources: SYMPHONY, sections
    3.3 and 3.6; CaraServe, section 5, for ranks and targets. The cost is ours.
    """

    num_looked_at: ClassVar[int | None] = 16
    moves_turns: ClassVar[bool] = True

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        costs = _costs(workers, History.of(demand, home), demand)
        best, cost = _least(costs)
        if home is None or home is best:
            return best, _reason(best, home, demand)
        at_home = next(cost for worker, cost in costs if worker is home)
        if at_home.total_ms <= cost.total_ms + _margin_ms(at_home):
            return home, "affinity"
        return best, _reason(best, home, demand)

    def better_than(
        self, kept: Worker, workers: Collection[Worker], demand: Demand, *, is_sent: bool
    ) -> Worker | None:
        history = History.prefetched_to(kept, demand)
        best, cost = _least(_costs(workers, history, demand))
        if best is kept:
            return None
        there = cost_at(kept, history, demand)
        margin_ms = _margin_ms(there) + (SENT_MS if is_sent else 0.0)
        wasted_ms = history.load_ms(kept.speeds.get(demand.model_id, DEFAULT_SPEEDS))
        return best if cost.total_ms + margin_ms + wasted_ms < there.total_ms else None

    def steps_ms(self, worker: Worker, demand: Demand) -> tuple[float, float]:
        return cost_at(worker, History.of(demand, None), demand).steps_ms


def cost_at(worker: Worker, history: History, demand: Demand) -> Cost:
    """The turn's cost on this worker."""
    speeds = worker.speeds.get(demand.model_id, DEFAULT_SPEEDS)
    ahead_ns = SOON_NS if demand.ahead_ns is None else demand.ahead_ns
    num_now = worker.num_turns + (worker.num_urgent if demand.is_urgent else 0)
    num_rows = num_now * RUN_NS / (RUN_NS + ahead_ns)
    if worker.reservations:
        num_near = len(worker.reservations) - worker.num_far
        about = worker.expected.about(demand.now_ns + ahead_ns, num_near)
        num_rows += about if ahead_ns else HERE_SHARE * about
    num_history = history.tokens(speeds.block_tokens)
    room, adapter = worker.room(demand.model_id), demand.adapter
    is_far_adapter = adapter is not None and not worker.holds(adapter.adapter_hash)
    work = TurnWork(
        num_rows=num_rows,
        num_tokens=demand.num_reply_tokens,
        num_tokens_beside=room.mean_tokens or demand.num_reply_tokens,
        lora_ms=lora_ms(worker, demand),
        num_seats=worker.report.turns_running_max,
        num_waiting_tokens=worker.num_waiting_tokens,
        num_new_tokens=max(demand.num_prompt_tokens - num_history, 0),
        num_history_tokens=num_history,
        fetch_ms=history.fetch_ms(worker, speeds) if num_history else 0.0,
        ahead_ms=ahead_ns / 1e6,
        adapter_ms=_adapter_ms(adapter, speeds) if adapter and is_far_adapter else 0.0,
    )
    cost = cost_of(worker.steps.get(demand.model_id, GUESSED), work)
    return cost._replace(broken_ms=BROKEN_MS * _num_broken(worker, demand, cost))


def lora_ms(worker: Worker, demand: Demand) -> tuple[float, float]:
    """What adapters add to a step without the turn, and with it."""
    mix = worker.mixes.get(demand.model_id, NO_MIX)
    extra = None if demand.adapter is None else Adapter.of(demand.adapter)
    if extra is None and not mix.adapters:
        return 0.0, 0.0
    step = worker.lora_steps.get(demand.model_id, GUESSED_LORA)
    return step.ms(mix.units()), step.ms(mix.units(extra))


def _adapter_ms(adapter: AdapterRef, speeds: Speeds) -> float:
    """To load its image: as measured; else from the host's memory, after it was found there."""
    if speeds.adapter_load_ms:
        return speeds.adapter_load_ms
    return ADAPTER_MS + max(adapter.image_bytes, 0) * 1e3 / speeds.load_bytes_per_s


def _num_broken(worker: Worker, demand: Demand, cost: Cost) -> int:
    """Targets that would be missed if the turn ran there, its own and those of turns there."""
    without_ms, with_ms = cost.steps_ms
    num = worker.mixes.get(demand.model_id, NO_MIX).num_broken(without_ms, with_ms)
    if demand.slo_ttft_ms is not None:
        num += cost.ttft_ms > demand.slo_ttft_ms
    if demand.slo_tpot_ms is not None:
        num += with_ms > demand.slo_tpot_ms
    return num


def _costs(
    workers: Collection[Worker], history: History, demand: Demand
) -> list[tuple[Worker, Cost]]:
    return [(worker, cost_at(worker, history, demand)) for worker in workers]


def _least(costs: list[tuple[Worker, Cost]]) -> tuple[Worker, Cost]:
    """The worker of least cost, and its cost."""
    least_ms = min(cost.total_ms for _, cost in costs)
    equals = [each for each in costs if each[1].total_ms == least_ms]
    return equals[0] if len(equals) == 1 else min(equals, key=lambda each: burden(each[0]))


def _margin_ms(cost: Cost) -> float:
    """How much another worker must save. Decoding costs about the same anywhere: left out."""
    return STAY_MS + STAY_SHARE * (cost.ttft_ms + cost.others_ms)


def _reason(best: Worker, home: Worker | None, demand: Demand) -> PlacementReason:
    if best is home:
        return "affinity"
    if best.report.host_id in demand.kv_at:
        return "kv"
    if demand.adapter is not None and best.holds(demand.adapter.adapter_hash):
        return "adapter"
    return "balance"
