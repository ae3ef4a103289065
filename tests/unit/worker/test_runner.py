"""The shell of one engine: what frontends send becomes turns, or a refusal of that turn alone."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.core.effects import ReportSoon
from services.worker.core.engine.engine import EngineCore
from services.worker.core.step import StepPlan
from services.worker.device.base.executor import Finished, RecordsNothing
from services.worker.device.thread import DeviceThreads
from services.worker.outbox import EngineListeners
from services.worker.runner import EngineRunner
from shared.ids import DEFAULT_TENANT, FrontendId, ModelId, SessionId, TurnId
from shared.owners import owner_key
from shared.runtime.clock import ManualClock, SystemClock
from shared.wire.messages import Prompt, SamplingParams, TurnDelta, TurnStart, pack_ints
from tests.unit.worker.driver import BLOCK_TOKENS, MS, NUM_LAYERS, new_core

VOCAB = 100


def make_runner(core: EngineCore, on_progress: Callable[[], None] = lambda: None) -> EngineRunner:
    info = SimpleNamespace(
        fingerprint="f",
        num_layers=NUM_LAYERS,
        block_tokens=BLOCK_TOKENS,
        lora=None,
        image_card=None,
        vocab_size=VOCAB,
        takes_images=False,
    )
    nothing = cast(Any, None)
    return EngineRunner(
        nothing,
        ManualClock(7 * MS),
        core,
        cast(Any, SimpleNamespace(info=info)),
        nothing,
        nothing,
        EngineListeners(on_progress=on_progress),
    )


def start(slo_ttft_ms: float | None = None, slo_tpot_ms: float | None = None) -> TurnStart:
    return TurnStart(
        turn_id=TurnId("t"),
        frontend_id=FrontendId("f"),
        model_id=ModelId("m"),
        num_prompt_tokens=3,
        slo_ttft_ms=slo_ttft_ms,
        slo_tpot_ms=slo_tpot_ms,
    )


def prompt(tokens: str = pack_ints([1, 2, 3]), num_generated: int = 0, **sampling: Any) -> Prompt:
    return Prompt(
        turn_id=TurnId("t"),
        attempt=1,
        tokens=tokens,
        num_generated=num_generated,
        sampling=SamplingParams(**{"max_tokens": 5, **sampling}),
    )


@pytest.mark.parametrize(("target_ms", "target_ns"), [(None, None), (0.0, 0), (1.5, 3 * MS // 2)])
def test_a_turn_keeps_the_targets_of_its_start(
    target_ms: float | None, target_ns: int | None
) -> None:
    core = new_core()
    make_runner(core).on_prompt(start(target_ms, slo_tpot_ms=7.0), prompt())
    turn = core.turns[TurnId("t")]
    assert (turn.targets.slo_ttft_ns, turn.targets.slo_tpot_ns, turn.request.arrived_at_ns) == (
        target_ns,
        7 * MS,
        7 * MS,
    )
    core = new_core()
    make_runner(core).on_prompt(start(slo_tpot_ms=target_ms), prompt())
    turn = core.turns[TurnId("t")]
    assert (turn.targets.slo_ttft_ns, turn.targets.slo_tpot_ns) == (None, target_ns)


def test_a_session_is_known_by_a_turn_that_has_no_block_yet() -> None:
    """It would else be told that there is none, while its first turn runs."""
    runner = make_runner(new_core())
    owner = owner_key(DEFAULT_TENANT, SessionId("s"))

    async def scenario() -> list[bool]:
        before = await runner.forget(owner, [])
        runner.on_prompt(replace(start(), session_id=SessionId("s")), prompt())
        return [before, await runner.forget(owner, [])]

    assert asyncio.run(scenario()) == [False, True]


def deltas_of(runner: EngineRunner) -> list[TurnDelta]:
    """What it will send to the frontend."""
    return list(runner._outbox._unsent[FrontendId("f")].all())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (prompt("no base64!"), "packed integers"),
        (prompt("AAA="), "packed integers"),
        (prompt(""), "no tokens"),
        (prompt(num_generated=3), "no tokens"),
        (prompt(num_generated=-1), "no tokens"),
        (prompt(pack_ints([1, VOCAB])), "vocabulary"),
        (prompt(pack_ints([-1])), "vocabulary"),
        (prompt(logit_bias=[(VOCAB, 1.0)]), "logit_bias"),
        (prompt(logit_bias=[(-1, 1.0)]), "logit_bias"),
        (prompt(logit_bias=[(1, float("nan"))]), "logit_bias"),
        (prompt(logit_bias=[(1, 1.0)] * 1025), "more than 1024"),
        (prompt(stop_token_ids=[VOCAB], min_tokens=1), "stop_token_ids"),
        (prompt(allowed_token_ids=[VOCAB]), "allowed_token_ids"),
        (prompt(temperature=float("nan")), "temperature"),
        (prompt(temperature=-1.0), "temperature"),
        (prompt(repetition_penalty=float("inf")), "repetition_penalty"),
        (prompt(top_k=-1), "top_k"),
        (prompt(max_tokens=0), "max_tokens"),
        (prompt(logprobs=-1), "logprobs"),
        (prompt(prompt_logprobs=10**9), "prompt_logprobs"),
    ],
)
def test_a_prompt_that_no_model_could_take_costs_its_own_turn_only(
    given: Prompt, word: str
) -> None:
    core = new_core()
    runner = make_runner(core)
    runner.on_prompt(start(), given)
    assert not core.turns
    (delta,) = deltas_of(runner)
    assert delta.finish == "error" and word in delta.message
    assert [ended.end.reason for ended in runner._outbox._ends] == ["error"]


@pytest.mark.parametrize("target_ms", [float("inf"), float("nan"), -1.0, 1e308])
@pytest.mark.parametrize("name", ["slo_ttft_ms", "slo_tpot_ms"])
def test_a_target_that_is_none_costs_its_own_turn_only(name: str, target_ms: float) -> None:
    core = new_core()
    runner = make_runner(core)
    runner.on_prompt(start(**{name: target_ms}), prompt())
    assert not core.turns and name in deltas_of(runner)[0].message


def test_a_start_after_a_loss_makes_the_worker_report_soon() -> None:
    core, told = new_core(), list[None]()
    runner = make_runner(core, on_progress=lambda: told.append(None))
    runner.on_prompt(replace(start(), was_lost=True), prompt())
    assert core.turns[TurnId("t")].request.was_lost and not told
    runner._perform([ReportSoon()])
    assert len(told) == 1


def test_an_idle_engine_is_checked_and_does_not_go_on_with_a_lost_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.worker.runner.CHECK_EVERY_S", 0.001)
    core = new_core()
    core.pool.num_free -= 1

    async def scenario() -> None:
        with pytest.raises(AssertionError, match="a page is lost"):
            await asyncio.wait_for(make_runner(core).check_for_ever(), 20)

    asyncio.run(scenario())


def test_a_step_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(RecordsNothing):
        """An executor whose device hangs until it is let go."""

        assist_tokens = 0
        info = SimpleNamespace(
            model_id="m",
            fingerprint="f",
            num_layers=NUM_LAYERS,
            block_tokens=BLOCK_TOKENS,
            vocab_size=VOCAB,
            takes_images=False,
            lora=None,
            image_card=None,
        )

        def __init__(self) -> None:
            self.let_go = threading.Event()

        def launch(self, plan: StepPlan) -> Finished:
            assert self.let_go.wait(20)
            raise AssertionError("let go")

    async def scenario() -> None:
        monkeypatch.setattr("services.worker.core.engine.steps_in_flight.STEP_UNKNOWN_NS", 10 * MS)
        executor, core = Stuck(), new_core()
        told: list[str] = []

        def on_stuck(why: str) -> None:
            told.append(why)
            executor.let_go.set()

        nothing = cast(Any, None)
        with ThreadPoolExecutor(1) as thread:
            runner = EngineRunner(
                nothing, SystemClock(), core, cast(Any, executor), nothing,
                DeviceThreads(thread), EngineListeners(on_stuck=on_stuck),
            )  # fmt: skip
            runner.on_prompt(start(), prompt())
            with pytest.raises(AssertionError, match="let go"):
                await runner.run()
        assert told == ["a step of 1 turns has run for 0 s"]

    asyncio.run(scenario())


def test_an_idle_worker_records_what_is_left_pass_by_pass() -> None:
    class Recording:
        assist_tokens = 0
        info = SimpleNamespace(
            model_id="m", fingerprint="f", num_layers=NUM_LAYERS, block_tokens=BLOCK_TOKENS,
            vocab_size=VOCAB, takes_images=False, lora=None, image_card=None,
        )  # fmt: skip

        def __init__(self) -> None:
            self.num_unrecorded = 3
            self.threads: set[int] = set()
            self.is_done = threading.Event()

        def record_next(self) -> None:
            self.threads.add(threading.get_ident())
            self.num_unrecorded -= 1
            if not self.num_unrecorded:
                self.is_done.set()

    async def scenario() -> None:
        executor, nothing = Recording(), cast(Any, None)
        with ThreadPoolExecutor(1) as thread:
            runner = EngineRunner(
                nothing, SystemClock(), new_core(), cast(Any, executor), nothing,
                DeviceThreads(thread), EngineListeners(),
            )  # fmt: skip
            running = asyncio.create_task(runner.run())
            assert await asyncio.to_thread(executor.is_done.wait, 20)
            running.cancel()
        assert executor.threads != {threading.get_ident()}, "in the device's thread"
        assert len(executor.threads) == 1

    asyncio.run(scenario())
