"""Rank-aware placement (CaraServe, section 5, Algorithm 1), to compare with."""

from collections.abc import Collection
from typing import ClassVar

from services.scheduler.core import PlacementPolicy, PlacementReason
from services.scheduler.core.fleet.kinds import GUESSED
from services.scheduler.core.fleet.mix import NO_MIX
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement.least_cost import lora_ms
from services.scheduler.core.placement.policy import Demand, burden

PENALTY_MS = 1e6  # for a target that would be missed: more than any difference of costs


class RankAware(PlacementPolicy):
    """The worker whose turns a new one delays least.

    Its score is what the turn adds to a step, for each turn there and itself, over the tokens that
    replies have, and its prompt, which all of them wait for; and a penalty if a step would then
    take longer than any target there allows. Neither histories nor queues count.
    """

    hears_hints: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        return min(workers, key=lambda each: (_score_ms(each, demand), burden(each))), "balance"


def _score_ms(worker: Worker, demand: Demand) -> float:
    steps = worker.steps.get(demand.model_id, GUESSED)
    mix = worker.mixes.get(demand.model_id, NO_MIX)
    num_rows = worker.num_turns
    without_ms, with_ms = lora_ms(worker, demand)
    before_ms = steps.step_ms + steps.row_ms * num_rows + without_ms
    after_ms = steps.step_ms + steps.row_ms * (num_rows + 1) + with_ms
    added_ms = (num_rows + 1) * (after_ms - before_ms) * demand.num_reply_tokens
    prompt_ms = (num_rows + 1) * demand.num_prompt_tokens * steps.token_ms
    tightest_ms = min(mix.targets_ms, default=after_ms)
    own_ms = after_ms if demand.slo_tpot_ms is None else demand.slo_tpot_ms
    is_broken = after_ms > min(tightest_ms, own_ms)
    return added_ms + prompt_ms + PENALTY_MS * is_broken
