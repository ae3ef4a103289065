"""A worker's turns on vLLM, of which only the engine is made up."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from services.worker.core.engine_limits import EngineLimits
from services.worker.core.vllm.forms import Form
from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import VllmRequest
from services.worker.device.base.executor import ModelInfo
from services.worker.outbox import EngineListeners
from services.worker.vllm.protocol import EngineGone
from services.worker.vllm_runner import VllmRunner
from shared.errors import InvalidRequest
from shared.ids import FrontendId, ModelId, TenantId, TurnId
from shared.runtime.clock import SystemClock
from shared.wire.messages import (
    Prompt,
    SamplingParams,
    StepOutput,
    TurnCancel,
    TurnDelta,
    TurnEnd,
    TurnsEnded,
    TurnStart,
    pack_ints,
)
from tests.memory_bus import MemoryBus
from tests.unit.worker.vllm.fake_engine import FakeEngine

INFO = ModelInfo(
    model_id="m", source="m", fingerprint="f", max_model_len=64, num_layers=2, page_bytes=8,
    stored_page_bytes=8, num_pages=20, vocab_size=100, end_token_ids=frozenset([9]),
    block_tokens=64,
)  # fmt: skip
TURN = TurnId("t")


@dataclass(frozen=True)
class Logprob:
    """As vLLM has them."""

    logprob: float
    rank: int


class Scene:
    """A runner, its engine, and what it sent."""

    def __init__(
        self, info: ModelInfo = INFO, kv: Any = None, engine: FakeEngine | None = None
    ) -> None:
        self.bus = MemoryBus()
        self.engine = FakeEngine(info) if engine is None else engine
        self.stuck: list[str] = []
        self.runner = VllmRunner(
            cast(Any, self.bus), SystemClock(), self.engine, EngineLimits(max_model_len=64),
            EngineListeners(on_stuck=self.stuck.append), kv,
        )  # fmt: skip

    async def settle(self) -> None:
        """Until everything that can happen has."""
        for _ in range(50):
            await asyncio.sleep(0)
        await self.runner._outbox.flush()
        await self.runner._outbox.drain()

    @property
    def deltas(self) -> list[TurnDelta]:
        return [delta for message in self.sent(StepOutput) for delta in message.all()]

    @property
    def ends(self) -> list[TurnEnd]:
        return [end for message in self.sent(TurnsEnded) for end in message.turns]

    def sent(self, kind: type[Any]) -> list[Any]:
        return [message for _, message in self.bus.published if isinstance(message, kind)]


def start(**more: Any) -> TurnStart:
    return replace(
        TurnStart(
            turn_id=TURN, frontend_id=FrontendId("f"), model_id=ModelId("m"), num_prompt_tokens=3
        ),
        **more,
    )


def prompt(num_generated: int = 0, **sampling: Any) -> Prompt:
    params = SamplingParams(max_tokens=sampling.pop("max_tokens", 8), **sampling)
    return Prompt(
        turn_id=TURN, attempt=1, tokens=pack_ints([1, 2, 3]), num_generated=num_generated,
        sampling=params,
    )  # fmt: skip


def test_tokens_come_as_from_our_own_engine() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.engine.outputs.put_nowait(Output(tokens=[5], num_cached=2, began_at_ns=1))
        scene.engine.outputs.put_nowait(Output(tokens=[6]))
        scene.engine.outputs.put_nowait(Output(tokens=[7, 9], finish="stop"))
        scene.runner.on_prompt(start(tenant=TenantId("a"), priority=3), prompt(temperature=0.5))
        assert scene.runner.num_turns == 1 and [ref.turn_id for ref in scene.runner.refs()] == [
            TURN
        ]
        await scene.settle()
        assert scene.runner.num_turns == 0
        await scene.runner.drain()
        return scene

    scene = asyncio.run(scenario())
    (request,) = scene.engine.asked
    args = request.args
    assert request.request_id == "t/1" and request.tokens == [1, 2, 3]
    assert request.priority == -3 and request.salt
    assert args["temperature"] == 0.5 and args["max_tokens"] == 8 and args["stop_token_ids"] == [9]
    assert [(delta.index, delta.tokens, delta.finish) for delta in sorted_by_index(scene)] == [
        (0, [5], None), (1, [6], None), (2, [7], None), (3, [9], "stop"),
    ]  # fmt: skip
    first = sorted_by_index(scene)[0]
    assert first.cached_tokens == 2 and first.cached_in == {"pool": 2}
    assert first.queue_ns is not None and first.prefill_ns is not None
    assert scene.ends == [TurnEnd(turn_id=TURN, attempt=1, reason="stop", num_generated=4)]


def sorted_by_index(scene: Scene) -> list[TurnDelta]:
    return sorted(scene.deltas, key=lambda delta: delta.index)


def test_log_probabilities_are_the_tokens_own_and_the_likeliest() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        position = {5: Logprob(-3.0, 4), 7: Logprob(-0.5, 1), 8: Logprob(-1.0, 2)}
        scene.engine.outputs.put_nowait(
            Output(
                tokens=[5], logprobs=[position], finish="length",
                prompt_logprobs=[
                    None, {2: Logprob(-1.0, 1)}, {3: Logprob(-2.0, 2), 4: Logprob(-1.0, 1)},
                ],
            )
        )  # fmt: skip
        scene.runner.on_prompt(start(), prompt(logprobs=2, prompt_logprobs=1))
        await scene.settle()
        return scene

    (delta,) = asyncio.run(scenario()).deltas
    assert delta.logprobs is not None and delta.prompt_logprobs is not None
    (entry,) = delta.logprobs
    assert (entry.token, entry.logprob, entry.top) == (5, -3.0, [(7, -0.5), (8, -1.0)])
    assert [(each.token, each.logprob, each.top) for each in delta.prompt_logprobs] == [
        (1, None, []), (2, -1.0, [(2, -1.0)]), (3, -2.0, [(4, -1.0)]),
    ]  # fmt: skip


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_cancelled_turn_is_aborted_and_says_nothing_more(attempt: int) -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), prompt())
        scene.engine.outputs.put_nowait(Output(tokens=[5]))
        await scene.settle()
        scene.runner.on_cancel(TurnCancel(turn_id=TURN, attempt=attempt))
        scene.engine.outputs.put_nowait(Output(tokens=[6], finish="abort"))
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    assert [delta.tokens for delta in scene.deltas] == [[5]]
    assert scene.engine.aborted == ["t/1"]
    assert [end.reason for end in scene.ends] == ["cancelled"]


def test_a_turn_that_is_cancelled_at_once_never_reaches_vllm() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), prompt())
        scene.runner.on_cancel(TurnCancel(turn_id=TURN))
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    assert not scene.engine.asked and [end.reason for end in scene.ends] == ["cancelled"]


def test_a_draining_worker_sends_everything_first() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), prompt())
        scene.engine.outputs.put_nowait(Output(tokens=[5, 9], finish="stop"))
        await scene.runner.drain()
        return scene

    scene = asyncio.run(scenario())
    assert [delta.finish for delta in sorted_by_index(scene)] == [None, "stop"] and scene.ends


def test_a_later_attempt_takes_the_place_of_an_earlier_one() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), prompt())
        await scene.settle()
        scene.runner.on_prompt(
            start(attempt=2), replace(prompt(num_generated=1, seed=4), attempt=2)
        )
        scene.runner.on_prompt(start(), prompt())  # late, and of no use
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    assert scene.engine.aborted == ["t/1"]
    assert [(end.attempt, end.reason) for end in scene.ends] == [(1, "cancelled")]
    assert [asked.request_id for asked in scene.engine.asked] == ["t/1", "t/2"]
    again = scene.engine.asked[1].args
    assert again["max_tokens"] == 7, "one was generated before"
    assert again["seed"] not in (4, None), "vLLM would begin its draws again"


def test_what_vllm_refuses_costs_its_own_turn_only() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), prompt())
        scene.engine.outputs.put_nowait(InvalidRequest("logit_bias: too many"))
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    (delta,) = scene.deltas
    assert delta.finish == "error" and "logit_bias" in delta.message
    assert not scene.stuck and not scene.runner.num_turns


def test_a_dead_engine_ends_the_worker_and_no_turn() -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), prompt())
        scene.engine.outputs.put_nowait(EngineGone("it is dead"))
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    assert scene.stuck == ["it is dead"]
    assert not scene.deltas and not scene.ends, "the turn is placed again, with its tokens"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (prompt(temperature=float("nan")), "temperature"),
        (replace(prompt(), tokens=pack_ints([100])), "vocabulary"),
        (replace(prompt(), tokens=pack_ints([1] * 64)), "the prompt has 64 tokens"),
        (replace(prompt(), images=["AAAA"]), "images: this model takes none"),
        (prompt(min_tokens=2, allowed_token_ids=[9, 7], stop_token_ids=[7]), "min_tokens"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(given: Prompt, word: str) -> None:
    async def scenario() -> Scene:
        scene = Scene()
        scene.runner.on_prompt(start(), given)
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    (delta,) = scene.deltas
    assert delta.finish == "error" and word in delta.message and not scene.engine.asked


class NoKv:
    """KV that must not be asked for anything."""

    def take_cached(self, request_id: str) -> None:
        return None

    def end(self, request_id: str) -> None:
        pass


def test_images_go_to_vllm_alone_and_count_as_prompt() -> None:
    async def scenario() -> Scene:
        scene = Scene(replace(INFO, takes_images=True), NoKv())
        scene.engine.outputs.put_nowait(Output(tokens=[5], num_prompt=10))
        scene.engine.outputs.put_nowait(Output(tokens=[9], num_prompt=10, finish="stop"))
        scene.runner.on_prompt(start(), replace(prompt(), images=["AAAA"]))
        await scene.settle()
        return scene

    scene = asyncio.run(scenario())
    (request,) = scene.engine.asked
    assert request.images == ["AAAA"] and not request.kv
    assert [delta.prompt_tokens for delta in sorted_by_index(scene)] == [10, None]


def test_vllm_is_asked_for_a_form_behind_what_was_generated_before() -> None:
    async def scenario() -> VllmRequest:
        scene = Scene()
        given = prompt(num_generated=2, grammar="start: /a*/", json_after=["x"])
        scene.runner.on_prompt(start(), given)
        await scene.settle()
        return scene.engine.asked[0]

    request = asyncio.run(scenario())
    assert request.form == Form(grammar="start: /a*/", json_after=["x"], generated=[2, 3])


def test_tenants_salts_and_private_turns_share_no_prefix() -> None:
    async def scenario() -> list[str]:
        scene = Scene()
        for number, (tenant, given) in enumerate([
            ("a", prompt()), ("a", prompt()), ("b", prompt()),
            ("a", replace(prompt(), cache_salt="s")), ("a", replace(prompt(), is_private=True)),
        ]):  # fmt: skip
            scene.runner.on_prompt(
                start(turn_id=TurnId(f"t{number}"), tenant=TenantId(tenant)), given
            )
        await scene.settle()
        return [asked.salt for asked in scene.engine.asked]

    first, same, *others = asyncio.run(scenario())
    assert first == same
    assert len({first, *others}) == 4
