"""Turns on adapters that other workers go on with: real workers, kvstores and a disk around a tiny
random model, held to PEFT's own tokens.
"""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.config import WorkerConfig
from services.worker.service import main
from shared.bus import Bus
from shared.ids import FrontendId, HostId, ModelId, SessionId, TurnId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    Prefetch,
    Prompt,
    PromptPull,
    PromptReply,
    SamplingParams,
    StepOutput,
    TurnDelta,
    TurnsStart,
    TurnStart,
    pack_ints,
)
from shared.wire.subjects import PROMPT_PULL, STEP_OUTPUT, WORKER_PREFETCH, WORKER_START
from tests.conftest import Server
from tests.integration.harness import InProcessRuntime, connected, eventually, running
from tests.integration.kvstore.cluster import Place, kvstore
from tests.unit.worker.device.lora.test_lora import BASE, Peft, Served, serve
from tests.unit.worker.device.test_torch_executor import prompt

# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

FRONTEND = FrontendId("f")
FIRST_TOKENS, FIRST_SAID = 90, 45
CACHED_TOKENS = 128  # two blocks of the first turn, and some tokens of a third
SHORT, LONG = 20, 120  # tokens that later turns say
COMPILING_S = 300.0  # kernels that nobody has used here yet


@dataclass(eq=False)
class Turn:
    """A greedy turn as its frontend knows it.

    Attributes:
        adapter: its name, or `BASE`.
        attempt: the one that is listened to; its `cached_tokens`.
        finish: why it ended, or with which error.
    """

    adapter: str
    ref: AdapterRef | None
    prompt: list[int]
    said_max: int
    attempt: int = 0
    said: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    cached_tokens: int = 0
    finish: str | None = None

    def on_delta(self, delta: TurnDelta) -> None:
        if delta.attempt != self.attempt:
            return
        assert delta.index == len(self.said)
        self.said += delta.tokens
        self.logprobs += [entry.logprob for entry in delta.logprobs or []]
        self.cached_tokens = delta.cached_tokens or self.cached_tokens
        self.finish = delta.message or delta.finish


class Frontend:
    """Places turns itself, and hands out what is known of them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._turns: list[Turn] = []  # by number, which is their id

    async def listen(self) -> None:
        await self._bus.serve(PROMPT_PULL, self._on_pull, FRONTEND)
        await self._bus.subscribe(STEP_OUTPUT, self._on_output, FRONTEND)
        await self._bus.flush()

    async def place(self, turns: Sequence[Turn], worker: str) -> None:
        """A further attempt at each, on this worker."""
        self._turns += [turn for turn in turns if turn not in self._turns]
        for turn in turns:
            turn.attempt += 1
        starts = [
            TurnStart(
                turn_id=TurnId(str(self._turns.index(turn))),
                frontend_id=FRONTEND,
                model_id=ModelId("base"),
                num_prompt_tokens=len(turn.prompt),
                attempt=turn.attempt,
                adapter=turn.ref,
            )
            for turn in turns
        ]
        await self._bus.publish(WORKER_START, TurnsStart(turns=starts), WorkerId(worker))

    async def _on_pull(self, pull: PromptPull) -> PromptReply:
        prompts = []
        for ref in pull.turns:
            turn = self._turns[int(ref.turn_id)]
            sampling = SamplingParams(
                max_tokens=turn.said_max, temperature=0.0, ignore_eos=True, logprobs=0
            )
            prompts.append(
                Prompt(
                    turn_id=ref.turn_id,
                    attempt=ref.attempt,
                    tokens=pack_ints([*turn.prompt, *turn.said]),
                    num_generated=len(turn.said),
                    sampling=sampling,
                )
            )
        return PromptReply(prompts=prompts)

    def _on_output(self, output: StepOutput) -> None:
        for delta in output.all():
            self._turns[int(delta.turn_id)].on_delta(delta)


@pytest.fixture
def place(nats_server: Server, redis_server: Server, tmp_path: Path) -> Place:
    return Place(nats_server, redis_server, tmp_path, {"arena_bytes": 32 * 1024**2})


def worker(
    place: Place, instance: str, base: Path | None = None, **settings: Any
) -> AbstractAsyncContextManager[InProcessRuntime]:
    """One life of a worker, in this process."""
    base = base or place.config.data_dir / "base"
    config = WorkerConfig(
        nats_url=place.nats.url,
        data_dir=place.config.data_dir,
        host_id=place.host_id,
        instance=instance,
        models=[str(base)],
        tasks={"base": "generate"},
        device="cpu",
        num_threads=1,
        kv_bytes=16 * 1024**2,
        **settings,
    )
    return running(main, config, "worker")


def assert_agrees(turn: Turn, peft: Peft) -> None:
    """It said what PEFT finds likeliest at each place, and as likely."""
    tokens, num_said = [*turn.prompt, *turn.said], len(turn.said)
    likely = peft.following(turn.adapter, tokens[:-1])[-num_said:]
    assert num_said == turn.said_max
    assert turn.said == likely.argmax(-1).tolist(), f"{turn.adapter}, attempt {turn.attempt}"
    assert torch.allclose(
        torch.tensor(turn.logprobs), likely[range(num_said), turn.said], atol=1e-4
    )


async def until_over(turns: Sequence[Turn]) -> None:
    await eventually(lambda: all(turn.finish for turn in turns), COMPILING_S)
    assert {turn.finish for turn in turns} == {"length"}


def first_turns(served: Served) -> list[Turn]:
    """The same prompt to the base and to every adapter."""
    names = [BASE, *served.peft.refs]
    return [
        Turn(name, served.peft.refs.get(name), prompt(2, FIRST_TOKENS), FIRST_SAID)
        for name in names
    ]


def next_turns(turns: Sequence[Turn], seed: int, said_max: int) -> list[Turn]:
    return [
        Turn(turn.adapter, turn.ref, [*turn.prompt, *turn.said, *prompt(seed, 15)], said_max)
        for turn in turns
    ]


def test_other_workers_go_on_from_disk_and_in_the_middle(place: Place) -> None:
    """What the first worker computed, and the adapters' images, are on disk alone when the second
    one begins: the files are gone as well. That one is stopped in the middle of some turns.
    """
    served = serve("llama", place.config.data_dir)

    async def scenario() -> list[Turn]:
        async with connected(place.nats.url) as bus:
            frontend, first = Frontend(bus), first_turns(served)
            await frontend.listen()
            async with kvstore(place), worker(place, "0"):
                await frontend.place(first, "h1-w0")
                await until_over(first)
            shutil.rmtree(place.config.adapters_path)
            short, long = next_turns(first, 3, SHORT), next_turns(first, 4, LONG)
            async with kvstore(place):
                async with worker(place, "1", drain_ms=0):
                    await frontend.place([*short, *long], "h1-w1")
                    await until_over(short)
                    assert {turn.cached_tokens for turn in [*short, *long]} == {CACHED_TOKENS}
                assert not any(turn.finish for turn in long)
                async with worker(place, "2"):
                    await frontend.place(long, "h1-w2")
                    await until_over(long)
                    assert min(turn.cached_tokens for turn in long) >= CACHED_TOKENS
            return [*first, *short, *long]

    turns = asyncio.run(scenario())
    for turn in turns:
        assert_agrees(turn, served.peft)
    assert len({tuple(turn.said) for turn in turns}) == len(turns), "adapters make no difference"


def copies(place: Place) -> set[str]:
    """Hashes of the adapters whose files are there as a whole."""
    found = {path.name for path in place.config.adapters_path.iterdir()} - {"names"}
    return {name for name in found if not name.startswith(".")}


@pytest.mark.parametrize("what", ["files", "announced", "images"])
def test_a_host_serves_adapters_that_another_one_has(
    what: str, nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    """It builds them from the other's files, for a turn or for one that was announced, or takes the
    images that were built there when the files are gone.
    """
    secret = tmp_path / "secret"
    secret.write_text("of the deployment")
    settings = {"arena_bytes": 32 * 1024**2, "peer_secret_file": secret}
    here, there = [
        Place(nats_server, redis_server, tmp_path / host_id, dict(settings), HostId(host_id))
        for host_id in ("h1", "h2")
    ]
    served = serve("llama", here.config.data_dir)
    base = here.config.data_dir / "base"
    wanted = {ref.adapter_hash for ref in served.peft.refs.values()}

    async def scenario() -> list[Turn]:
        async with connected(here.nats.url) as bus, kvstore(there):
            frontend, turns = Frontend(bus), first_turns(served)
            await frontend.listen()
            async with kvstore(here):
                if what == "images":
                    async with worker(here, "0"):
                        await frontend.place(turns, "h1-w0")
                        await until_over(turns)
                    for ref in served.peft.refs.values():
                        shutil.rmtree(here.config.adapters_path / ref.adapter_hash)
                async with worker(there, "0", base):
                    if what == "announced":
                        for name, ref in served.peft.refs.items():
                            coming = Prefetch(
                                session_id=SessionId(name), model_id=ModelId("base"), adapter=ref
                            )
                            await bus.publish(WORKER_PREFETCH, coming, WorkerId("h2-w0"))
                        await eventually(lambda: copies(there) == wanted)
                    turns = next_turns(turns, 3, SHORT)
                    await frontend.place(turns, "h2-w0")
                    await until_over(turns)
            assert copies(there) == (set() if what == "images" else wanted)
            return turns

    for turn in asyncio.run(scenario()):
        assert_agrees(turn, served.peft)
