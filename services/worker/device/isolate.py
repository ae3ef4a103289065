"""A step that breaks is run again row by row, so that the row which breaks it costs no other row
anything.
"""

import logging

from services.worker.core.step import StepPlan, StepResult
from services.worker.device.base.executor import Executor, Finished, Launched
from shared.ids import TurnId

log = logging.getLogger(__name__)


def launch_isolated(executor: Executor, plan: StepPlan) -> Launched:
    """Run a plan. Rows that break even alone are in `StepResult.broken`; no row is part of more
    than two failures of a step.

    Raises:
        Exception: not a row is at fault but the device, which has no memory left or computes
            nothing any more, or an invariant does not hold.
    """
    try:
        return executor.launch(plan)
    except AssertionError:
        raise
    except Exception as error:
        _raise_if_short(error, plan)
        log.exception("a step failed: running its rows one by one", extra=_named(plan))
        executor.check_device()
    result = StepResult(sampled=[None] * plan.num_rows, stall_ns=[0] * executor.info.num_layers)
    for index in range(plan.num_rows):
        alone = plan.alone(index)
        try:
            part = executor.launch(alone).result()
        except AssertionError:
            raise
        except Exception as error:
            _raise_if_short(error, alone)
            log.exception("a turn cannot be computed", extra=_named(alone))
            executor.check_device()
            result.broken[index] = f"the turn cannot be computed: {type(error).__name__}"
        else:
            _merge(result, part, index)
    return Finished(result)


def _raise_if_short(error: Exception, plan: StepPlan) -> None:
    """Raise a device's lack of memory again. The pool leaves room for the largest step, so that no
    row is at fault, but for one whose prompt is scored: that takes more. A restart measures again.
    """
    is_short = isinstance(error, RuntimeError) and "out of memory" in str(error)
    if is_short and not plan.scoring:
        raise error


def _merge(result: StepResult, part: StepResult, index: int) -> None:
    """Enter what row `index` gave by itself."""
    stalls = zip(result.stall_ns, part.stall_ns, strict=True)
    result.stall_ns = [a + b for a, b in stalls]
    result.stall_at_ns = part.stall_at_ns | result.stall_at_ns
    result.duration_ns += part.duration_ns
    result.assist_ns += part.assist_ns
    result.sampled[index] = part.sampled[0]
    result.failed |= {index} if 0 in part.failed else set()
    if 0 in part.refused:
        result.refused[index] = part.refused[0]
    if 0 in part.broken:
        result.broken[index] = part.broken[0]
    if 0 in part.prompt_logprobs:
        result.prompt_logprobs[index] = part.prompt_logprobs[0]


def _named(plan: StepPlan) -> dict[str, list[TurnId]]:
    return {"turn_ids": plan.turn_ids}
