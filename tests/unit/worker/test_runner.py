from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.runner import EngineRunner
from shared.clock import ManualClock
from shared.ids import FrontendId, ModelId, TurnId, WorkerId
from shared.messages import Prompt, TurnStart, pack_ints
from tests.unit.worker.driver import BLOCK_TOKENS, MS, NUM_LAYERS, new_core


@pytest.mark.parametrize(
    ("slo_ttft_ms", "slo_ttft_ns"), [(None, None), (0.0, 0), (1.5, 3 * MS // 2)]
)
def test_a_turn_keeps_the_target_of_its_start(
    slo_ttft_ms: float | None, slo_ttft_ns: int | None
) -> None:
    core = new_core()
    info = SimpleNamespace(fingerprint="f", num_layers=NUM_LAYERS, block_tokens=BLOCK_TOKENS)
    runner = EngineRunner(
        cast(Any, None),
        ManualClock(7 * MS),
        WorkerId("w"),
        core,
        cast(Any, SimpleNamespace(info=info)),
        cast(Any, None),
        cast(Any, None),
    )
    start = TurnStart(
        turn_id=TurnId("t"),
        frontend_id=FrontendId("f"),
        model_id=ModelId("m"),
        num_prompt_tokens=3,
        slo_ttft_ms=slo_ttft_ms,
    )
    runner.on_prompt(start, Prompt(turn_id=TurnId("t"), attempt=1, tokens=pack_ints([1, 2, 3])))
    turn = core.turns[TurnId("t")]
    assert (turn.slo_ttft_ns, turn.arrived_at_ns) == (slo_ttft_ns, 7 * MS)
