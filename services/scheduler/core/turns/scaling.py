"""How many workers each language model should have: the advice for one-shot models (deferred batch
scheduling, section 3.5), with what a worker of turns is short of.

A worker is as busy as its seats or its blocks are taken, whichever are more. A turn is served badly
while it waits for room anywhere, and while the steps that it is in take longer than its target.
"""

from services.scheduler.core.base.effects import PublishAdvice
from services.scheduler.core.batching.scaling import ScalingAdvisor, ScalingLimits
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.waiting import WaitingTurns
from shared.ids import ModelId
from shared.wire.messages import AutoscaleAdvice

INTERVAL_NS = 1_000_000_000
WORKERS_MAX = 10_000
MODELS_MAX = 256
# More than batches need: turns come in bursts, and take their places for longer.
LIMITS = ScalingLimits(gpus_max=WORKERS_MAX, headroom=0.3)


class Scaling:
    """Advises once an interval, for each model that has workers or turns that wait for one."""

    def __init__(self, context: TurnContext, waiting: WaitingTurns, from_ns: int) -> None:
        self._context = context
        self._waiting = waiting
        self._advisors: dict[ModelId, ScalingAdvisor] = {}
        if context.share.index == 0:  # what one of several sees of the turns stands for all
            context.timers.at(from_ns + INTERVAL_NS, self._advise)

    def _advise(self, now_ns: int) -> None:
        context = self._context
        context.timers.at(now_ns + INTERVAL_NS, self._advise)
        waiting = self._waiting
        models = sorted({*context.fleet.models, *waiting.models})[:MODELS_MAX]
        for model_id in models:
            workers = [*context.fleet.serving(model_id)]
            advisor = self._advisors.get(model_id)
            if advisor is None:
                advisor = self._advisors[model_id] = ScalingAdvisor(len(workers), LIMITS)
            num_turns = sum(worker.room(model_id).num_turns for worker in workers)
            num_bad = sum(self._num_late(worker, model_id) for worker in workers)
            num_waiting = waiting.num_queued(model_id) * context.share.num
            busy = sum(_busy_share(worker, model_id) for worker in workers)
            share = busy / len(workers) if workers else 0.0
            num_good = max(num_turns - num_bad, 0)
            advisor.on_interval(num_good, num_bad + num_waiting, share, len(workers), now_ns)
            advice = advisor.advice(now_ns)
            self._publish(
                AutoscaleAdvice(
                    model_id=model_id,
                    num_workers=len(workers),
                    add=advice.add,
                    remove=advice.remove,
                    bad_rate=advice.bad_rate,
                    idle_share=advice.idle_share,
                )
            )
        for model_id in [each for each in self._advisors if each not in models]:
            del self._advisors[model_id]
            self._publish(
                AutoscaleAdvice(
                    model_id=model_id, num_workers=0, add=0, remove=0, bad_rate=0, idle_share=0
                )
            )

    def _publish(self, advice: AutoscaleAdvice) -> None:
        self._context.out.append(PublishAdvice(advice))

    def _num_late(self, worker: Worker, model_id: ModelId) -> int:
        """Turns there whose target for the time between tokens is missed."""
        mix = worker.mixes.get(model_id)
        if mix is None or not mix.targets_ms:
            return 0
        step_ms = self._context.placer.policy.step_ms(worker, model_id)
        return sum(num for target_ms, num in mix.targets_ms.items() if step_ms > target_ms)


def _busy_share(worker: Worker, model_id: ModelId) -> float:
    """Of its seats or its blocks, whichever are taken more."""
    room, num_seats = worker.room(model_id), worker.report.turns_running_max
    seats = room.num_turns / num_seats if num_seats else 0.0
    blocks = 1.0 - room.num_blocks_free / room.num_blocks if room.num_blocks else 0.0
    return max(seats, blocks)
