"""``symphony bench writeback``: what write-behind costs decoding.

The same batch of turns is decoded by a worker that writes new KV below (arena, LMDB, Redis) and by
one that does not; rounds alternate, so that drift of the machine meets both.
"""

import argparse
import asyncio
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from loadtest.bench.lab import Lab, open_lab
from loadtest.models import make_llama_125m

VOCAB = 32000
PROMPT_TOKENS = 128


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return decode ms a step with and without write-behind."""
    parser = argparse.ArgumentParser(prog="symphony bench writeback", description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models-dir", type=Path, default=Path("~/.symphony/models").expanduser())
    args = parser.parse_args(argv)
    model = make_llama_125m(args.models_dir, "bfloat16")
    return asyncio.run(_measure(args, model))


async def _measure(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    rng = random.Random(2)
    step_ms: dict[str, list[float]] = {"on": [], "off": []}
    async with open_lab(models=f'["{model}"]') as lab:
        await lab.start("kvstore")
        for number in range(args.rounds):
            # Which side goes first alternates too.
            for side in ("on", "off") if number % 2 == 0 else ("off", "on"):
                lab.mark_log("worker")
                await lab.start("worker", write_behind=str(side == "on").lower())
                if side == "on":
                    await lab.wait_connected()
                await _decode(lab, args.batch, 16, rng)
                step_ms[side].append(await _decode(lab, args.batch, args.tokens, rng))
                print(f"{side}: {step_ms[side][-1]:.2f} ms a step", file=sys.stderr, flush=True)
    on, off = statistics.median(step_ms["on"]), statistics.median(step_ms["off"])
    return {
        "on_ms": round(on, 2),
        "off_ms": round(off, 2),
        "slowdown_percent": round((on / off - 1) * 100, 1),
        "rounds_on_ms": [round(ms, 2) for ms in step_ms["on"]],
        "rounds_off_ms": [round(ms, 2) for ms in step_ms["off"]],
    }


async def _decode(lab: Lab, batch: int, tokens: int, rng: random.Random) -> float:
    """Decode `batch` turns together; ms a step between the last first token and the first end."""
    prompts = [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
    started = [lab.begin(prompt, tokens) for prompt in prompts]
    await asyncio.gather(*(task for _, task in started))
    traces = [trace for trace, _ in started]
    begin = max(trace.token_at[0] for trace in traces)
    end = min(trace.token_at[-1] for trace in traces)
    num_steps = sum(begin < at <= end for at in traces[0].token_at)
    return (end - begin) / num_steps * 1e3
