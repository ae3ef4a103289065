"""A step that breaks is run again row by row, so that the row which breaks it costs no other row
anything.
"""

import logging

from services.worker.core.effects import LATE, StepPlan, StepResult
from services.worker.engine.executor import Executor

log = logging.getLogger(__name__)


def execute_isolated(executor: Executor, plan: StepPlan) -> StepResult:
    """Run a plan. Rows that break even alone are in `StepResult.broken`; no row is part of more
    than two failures.

    Raises:
        Exception: not a row is at fault but the device, which nothing can be computed on any more,
            or an invariant does not hold.
    """
    try:
        return executor.execute(plan)
    except AssertionError:
        raise
    except Exception:
        log.exception("a step failed: running its rows one by one", extra=_named(plan))
        executor.check_device()
    result = StepResult(
        sampled=[None] * len(plan.rows),
        checksums=[[] for _ in plan.writes],
        stall_ns=[0] * executor.info.num_layers,
    )
    late = plan.late()
    if late.writes:
        _merge(result, plan, executor.execute(late), LATE)
    for index in range(len(plan.rows)):
        alone = plan.alone(index)
        try:
            part = executor.execute(alone)
        except AssertionError:
            raise
        except Exception as error:
            log.exception("a turn cannot be computed", extra=_named(alone))
            executor.check_device()
            result.broken[index] = f"the turn cannot be computed: {type(error).__name__}"
        else:
            _merge(result, plan, part, index)
    return result


def _merge(result: StepResult, plan: StepPlan, part: StepResult, index: int) -> None:
    """Enter what one part gave.

    Args:
        index: of its row in the plan, or `LATE`.
    """
    writes = [at for at, write in enumerate(plan.writes) if write.row == index]
    for at, checksums in zip(writes, part.checksums, strict=False):  # none if nothing was written
        result.checksums[at] = checksums
    stalls = zip(result.stall_ns, part.stall_ns, strict=False)
    result.stall_ns = [a + b for a, b in stalls] or result.stall_ns
    result.duration_ns += part.duration_ns
    if index == LATE:
        return
    result.sampled[index] = part.sampled[0]
    result.failed |= {index} if 0 in part.failed else set()
    if 0 in part.broken:
        result.broken[index] = part.broken[0]
    if 0 in part.prompt_logprobs:
        result.prompt_logprobs[index] = part.prompt_logprobs[0]


def _named(plan: StepPlan) -> dict[str, list[str]]:
    return {
        "turn_ids": [row.turn.turn_id for row in plan.rows],
        "request_ids": [row.turn.request_id for row in plan.rows],
    }
