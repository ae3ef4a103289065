"""Time to the first token of a turn whose adapter is not in the pool, beside the same turn once it
is, by start mode (`lora_start`) and over a link of so many MB/s.

A worker and its kvstore run as processes of their own. There are more adapters than the pool has
room for, and they are asked for in turn, so that none is there when its turn comes; right after it
a turn with another prompt of the same length runs on the same adapter, which is there (`cached`).
`over_cached` compares medians; `others_tpot_ratio` is the time per token of turns that decode on
the base model meanwhile, while adapters are loaded one after another, over what it is while the
same turns run on an adapter that is there. `starts` counts start modes as the worker saw them.
"""

import asyncio
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loadtest.bench.lab import Lab, Trace, open_lab
from loadtest.bench.lora.made import MadeAdapter, make_adapters
from loadtest.models import Shape, shape_of
from shared.adapters.layout import ImageLayout, image_bytes, layout_image
from shared.errors import InvalidRequest
from shared.wire.messages import LoraCard

BLOCK_TOKENS = 64
WARM_TOKENS, WARM_DECODES = 512, 32  # the worker is to know its speeds
OTHERS = 3
MODES = ("wait", "stream", "assist", "auto")
KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured.

    Attributes:
        prompts: tokens of prompts.
        links: MB/s; 0: as fast as memory is.
        targets: of `TARGETS`.
        modes: of `MODES`.
        others_tokens: of turns that decode meanwhile.
    """

    ranks: Sequence[int]
    prompts: Sequence[int]
    links: Sequence[int]
    targets: str
    rounds: int
    modes: Sequence[str]
    others_tokens: int


def measure_coldstarts(source: str, asked: Asked) -> list[dict[str, Any]]:
    """A row for each rank, link, mode and length of prompts.

    Args:
        source: folder or hub id of the model.

    Raises:
        InvalidRequest: the model takes no adapters.
    """
    return asyncio.run(_measure(source, asked))


async def _measure(source: str, asked: Asked) -> list[dict[str, Any]]:
    shape = shape_of(source)
    rows: list[dict[str, Any]] = []
    async with open_lab(models=f'["{source}"]', kv_bytes=str(KV_BYTES)) as lab:
        await lab.start("kvstore")
        await lab.start("worker")
        card = lab.card.lora
        if card is None:
            raise InvalidRequest(f"{source}: it takes no adapters")
        folder = lab.directory / "adapters"
        for rank in asked.ranks:
            one = make_adapters(lab.directory / f"one-{rank}", card, asked.targets, [rank], 1)[0]
            image = image_bytes(card, _layout(card, one))
            kv_bytes = _pool_bytes(max(asked.prompts), asked.others_tokens, shape, image)
            count = kv_bytes // image + 2
            adapters = make_adapters(folder, card, asked.targets, [rank], count)
            bench = _Coldstart(lab, asked, shape, card, adapters, kv_bytes)
            for link in asked.links:
                for row in await bench.measure(link):
                    rows.append({"link_mb_s": link, "rank": rank, **row})
                    _say(str({name: rows[-1][name] for name in rows[-1] if name != "samples_ms"}))
    return rows


class _Coldstart:
    """One set of adapters."""

    def __init__(
        self,
        lab: Lab,
        asked: Asked,
        shape: Shape,
        card: LoraCard,
        adapters: list[MadeAdapter],
        kv_bytes: int,
    ) -> None:
        self._lab = lab
        self._asked = asked
        self._shape = shape
        self._adapters = adapters
        self._kv_bytes = kv_bytes
        self._rng = random.Random(1)
        self._num_blocks = _layout(card, adapters[0]).num_blocks
        self._num_stored = 0

    async def measure(self, link: int) -> list[dict[str, Any]]:
        """A row for each length of prompts and each way, over one link."""
        lab, asked, rows = self._lab, self._asked, list[dict[str, Any]]()
        for mode in asked.modes:
            lab.mark_log("worker")
            settings = {"lora_start": mode, "link_mb_s": str(link), "kv_bytes": str(self._kv_bytes)}
            settings["report_interval_ms"] = "50"
            await lab.start("worker", **settings)
            await lab.wait_connected()
            if mode == "assist" or (mode == "auto" and link and not torch.cuda.is_available()):
                await lab.wait_helpers()
            await lab.turn(self._prompt(WARM_TOKENS), WARM_DECODES)
            await self._store()
            for prompt in asked.prompts:
                rows.append({"mode": mode, **await self._compare(prompt)})
            rows[-1] |= await self._others()
        return rows

    async def _store(self) -> None:
        """Have every image below."""
        before = (await self._lab.kv_stats()).disk_blocks if not self._num_stored else 0
        for adapter in self._adapters:
            await self._lab.turn(self._prompt(8), adapter=adapter.ref)
        if not self._num_stored:
            self._num_stored = len(self._adapters) * self._num_blocks
            await self._lab.wait_durable(before + self._num_stored)

    async def _compare(self, num_tokens: int) -> dict[str, Any]:
        """Each adapter's turn when it is not there, and at once again."""
        lab, cold, cached = self._lab, list[float](), list[float]()
        before = Counter(await lab.starts())
        for _ in range(self._asked.rounds):
            for adapter in self._adapters:
                cold.append((await self._turn(num_tokens, adapter)).ttft_ms)
                await lab.wait_resident(adapter.ref)
                cached.append((await self._turn(num_tokens, adapter)).ttft_ms)
        starts = Counter(await lab.starts())
        starts.subtract(before)
        cold_ms, cached_ms = statistics.median(cold), statistics.median(cached)
        return {
            "prompt_tokens": num_tokens,
            "ttft_ms": round(cold_ms, 1),
            "cached_ms": round(cached_ms, 1),
            "over_cached": round(cold_ms / cached_ms, 2),
            "starts": dict(+starts),
            "samples_ms": {"cold": _rounded(cold), "cached": _rounded(cached)},
        }

    async def _others(self) -> dict[str, Any]:
        """Time per token of others while adapters are loaded, and while none is."""
        loading, resident = [], []
        for _ in range(self._asked.rounds):
            loading.append(await self._others_ms(self._adapters))
            resident.append(await self._others_ms(self._adapters[:1]))
        ms = {"loading": statistics.median(loading), "resident": statistics.median(resident)}
        return {
            "others_tpot_ratio": round(ms["loading"] / ms["resident"], 3),
            "others_tpot_ms": {name: round(each, 2) for name, each in ms.items()},
        }

    async def _others_ms(self, adapters: list[MadeAdapter]) -> float:
        num_tokens = self._asked.others_tokens
        begun = [self._lab.begin(self._prompt(8), num_tokens) for _ in range(OTHERS)]
        number = 0
        for trace, _ in begun:
            await trace.begun.wait()
        while not any(trace.ended.is_set() for trace, _ in begun):
            await self._turn(8, adapters[number % len(adapters)])
            number += 1
        for _, ending in begun:
            await ending
        spans = [trace.token_at[-1] - trace.token_at[0] for trace, _ in begun]
        return statistics.median(spans) / (num_tokens - 1) * 1e3

    async def _turn(self, num_tokens: int, adapter: MadeAdapter) -> Trace:
        return await self._lab.turn(self._prompt(num_tokens), adapter=adapter.ref)

    def _prompt(self, num_tokens: int) -> list[int]:
        return [self._rng.randrange(self._shape.vocab_size) for _ in range(num_tokens)]


def _rounded(times_ms: list[float]) -> list[float]:
    return [round(ms, 1) for ms in times_ms]


def _pool_bytes(longest: int, others_tokens: int, shape: Shape, image: int) -> int:
    """Of a pool that holds two images, a prompt, and the others' turns."""
    own = max(longest, WARM_TOKENS + WARM_DECODES) + 2 * BLOCK_TOKENS
    others = OTHERS * (others_tokens + BLOCK_TOKENS)
    return 2 * image + (own + others) * shape.token_bytes


def _layout(card: LoraCard, adapter: MadeAdapter) -> ImageLayout:
    return layout_image(card, adapter.ref.ranks)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
