"""KV of a real vLLM, below it: loaded, preempted, damaged and late. Run by a Python with vLLM."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shared.arena import PageState
from shared.ids import ModelId, SessionId
from shared.wire.messages import Prefetch
from tests.vllm.scene import ANSWER_S, TENANT, Scene, fill, scene_in, talk

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


def test_kv_comes_back_right_or_is_computed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            await loaded(scene)
            await damaged(scene)
            await late(scene)
            await hinted(scene)
            await preempted(scene)
            await asyncio.sleep(0)
            assert not scene.kvstore.tickets, "a ticket is held for ever"

    asyncio.run(scenario())


def test_two_ranks_have_their_parts_of_each_block(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path, num_ranks=2) as scene:
            await loaded(scene)
            await damaged(scene)
            victims = [pid for pid in children_of(os.getpid()) if "Worker" in name_of(pid)]
            os.kill(victims[-1], signal.SIGKILL)
            with pytest.raises(AssertionError, match=r"connector|ended"):
                await scene.ask(talk(9, 300), 500)

    asyncio.run(scenario())


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        own = [int(word) for word in file.read().split()]
    return [*own, *(each for child in own for each in children_of(child))]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def loaded(scene: Scene) -> None:
    prompt = talk(1, 400)
    first, delta = await scene.ask(prompt)
    assert not delta.cached_tokens
    await fill(scene)
    again, delta = await scene.ask(prompt)
    assert again == first and delta.cached_in == {"host": 384}
    local, delta = await scene.ask(prompt)
    assert local == first and delta.cached_in == {"pool": 384}
    _, delta = await scene.ask(prompt, salt="other")
    assert not delta.cached_tokens


async def damaged(scene: Scene) -> None:
    prompt = talk(2, 400)
    first, _ = await scene.ask(prompt)
    await fill(scene)
    scene.kvstore.spoil = PageState.BAD
    again, delta = await scene.ask(prompt)
    assert again == first and delta.cached_in == {"host": 192}, "as far as it was good"
    assert scene.runner.status().totals.num_load_failures == 3
    await fill(scene)
    again, delta = await scene.ask(prompt)
    assert again == first and delta.cached_in == {"host": 384}, "it was stored again"


async def late(scene: Scene) -> None:
    prompt = talk(3, 400)
    first, _ = await scene.ask(prompt)
    await fill(scene)
    scene.kvstore.spoil = PageState.FILLING
    waiting = asyncio.ensure_future(scene.ask(prompt))
    await scene.ask(talk(4, 50))
    assert not waiting.done(), "others go on meanwhile"
    again, delta = await waiting
    assert again == first and delta.cached_in == {"host": 192}


async def hinted(scene: Scene) -> None:
    prompt = talk(5, 400)
    first, _ = await scene.ask(prompt, session="h")
    await fill(scene)
    num_staged = scene.kvstore.num_staged
    scene.runner.on_prefetch(
        Prefetch(session_id=SessionId("h"), model_id=ModelId("m"), tenant=TENANT, trace="t")
    )
    async with asyncio.timeout(ANSWER_S):
        await scene.prefetched.get()
    assert scene.kvstore.num_staged == num_staged + 6 and scene.kvstore.tickets
    again, delta = await scene.ask(prompt, session="h")
    assert again == first and delta.cached_in == {"pool": 384}
    scene.runner.on_prefetch(
        Prefetch(session_id=SessionId("unknown"), model_id=ModelId("m"), tenant=TENANT)
    )


async def preempted(scene: Scene) -> None:
    prompts = [talk(10 + number, 200) for number in range(6)]
    num_new = 130  # six of them need more blocks than there are
    expected = [
        (await scene.ask(prompt, num_new, salt=f"a{at}"))[0] for at, prompt in enumerate(prompts)
    ]
    num_before, num_staged = scene.engine.counts.num_preemptions, scene.kvstore.num_staged
    found = await asyncio.gather(
        *(scene.ask(prompt, num_new, salt=f"b{at}") for at, prompt in enumerate(prompts))
    )
    assert [tokens for tokens, _ in found] == expected
    assert scene.engine.counts.num_preemptions > num_before
    assert scene.kvstore.num_staged > num_staged, "nothing came back from below"
