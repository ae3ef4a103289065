"""``symphony bench writeback``: what write-behind costs decoding, and prefilling.

The same batch of turns is decoded by a worker that writes new KV below (arena, disk, Redis) and by
one that does not; rounds alternate, so that drift of the machine meets both. With `--prefill` the
same goes for prompts, one after the other. With `--disk-full` a third side writes to a disk that is
full, so that for each block that comes another one goes. With `--s3` one writes to an object store
as well, as soon as a session rests: a server of S3 on this machine, which takes its part of it.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from loadtest.bench.lab import Lab, open_lab
from loadtest.models import make_llama_125m
from loadtest.s3_server import NoServer, s3_server
from shared.errors import InvalidRequest, PeerUnavailable
from shared.ids import SessionId, new_id

VOCAB = 32000
PROMPT_TOKENS = 128
MIB = 1024**2
FILL_PROMPTS_MAX = 1000

Figures = dict[str, list[float]]


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return decode ms a step with and without write-behind, and ms a prompt.

    Raises:
        InvalidRequest: an option is wrong.
    """
    parser = argparse.ArgumentParser(prog="symphony bench writeback", description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", action="store_true", help="measure prompts too")
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="of those")
    parser.add_argument("--prompts", type=int, default=8, help="of those, in a round")
    parser.add_argument("--disk-full", action="store_true", help="measure on a full disk too")
    parser.add_argument("--disk-mb", type=int, default=128, help="what that holds, MiB")
    parser.add_argument("--s3", action="store_true", help="measure with an object store too")
    parser.add_argument("--models-dir", type=Path, default=Path("~/.symphony/models").expanduser())
    args = parser.parse_args(argv)
    if min(args.batch, args.rounds, args.prompts, args.prompt_tokens, args.disk_mb) < 1:
        raise InvalidRequest(
            "--batch, --rounds, --prompts, --prompt-tokens, --disk-mb: use numbers from 1 on"
        )
    if args.tokens < 2:
        raise InvalidRequest("--tokens: use a number from 2 on")
    model = make_llama_125m(args.models_dir, "bfloat16")
    if not args.s3:
        return asyncio.run(_measure(args, model, {}))
    with tempfile.TemporaryDirectory(prefix="symphony-s3-") as folder:
        try:
            with s3_server(Path(folder) / "s3.log") as server:
                os.environ.update(server.environment)
                objects = {"objects_url": server.url, "objects_rest_s": "0"}
                return asyncio.run(_measure(args, model, objects))
        except NoServer as error:
            raise PeerUnavailable(str(error)) from None


async def _measure(
    args: argparse.Namespace, model: Path, objects: dict[str, str]
) -> dict[str, Any]:
    rng = random.Random(2)
    step_ms: Figures = defaultdict(list)
    prompt_ms: Figures = defaultdict(list)
    kvstores: dict[str, dict[str, str]] = {"on": {}, "off": {}}
    if args.disk_full:
        kvstores["full"] = {"disk_bytes_max": str(args.disk_mb * MIB)}
    if args.s3:
        kvstores["s3"] = objects
    sides = list(kvstores)
    async with open_lab(models=f'["{model}"]') as lab:
        await lab.start("kvstore")
        for number in range(args.rounds):
            # Which side goes first alternates too.
            for side in sides if number % 2 == 0 else reversed(sides):
                await _begin(lab, side, kvstores, args, rng)
                await _decode(lab, args.batch, min(args.tokens, 16), rng)
                step_ms[side].append(await _decode(lab, args.batch, args.tokens, rng))
                _say(side, step_ms[side][-1], "a step")
                if args.prefill:
                    prompt_ms[side].append(await _prefill(lab, args, rng))
                    _say(side, prompt_ms[side][-1], "a prompt")
    result = _summary(step_ms, "")
    if args.prefill:
        result |= _summary(prompt_ms, "prefill_")
    if args.disk_full:
        result["disk_mb"] = args.disk_mb
    return result


async def _begin(
    lab: Lab,
    side: str,
    kvstores: dict[str, dict[str, str]],
    args: argparse.Namespace,
    rng: random.Random,
) -> None:
    """Have the worker of this side, and its kvstore."""
    if any(kvstores.values()):
        await lab.start("kvstore", **kvstores[side])
    lab.mark_log("worker")
    await lab.start("worker", write_behind=str(side != "off").lower())
    if side != "off":
        await lab.wait_connected()
    if side == "full":
        await _fill(lab, args, rng)


async def _fill(lab: Lab, args: argparse.Namespace, rng: random.Random) -> None:
    """Until there is no room on disk for two blocks more."""
    for _ in range(FILL_PROMPTS_MAX):
        stats = await lab.kv_stats()
        block_bytes = stats.disk_bytes / max(stats.disk_blocks, 1)
        if stats.disk_blocks and stats.disk_bytes + 2 * block_bytes > args.disk_mb * MIB:
            return
        await _prefill(lab, args, rng)
        await lab.wait_written()
    raise PeerUnavailable(f"the disk was not full after {FILL_PROMPTS_MAX * args.prompts} prompts")


async def _prefill(lab: Lab, args: argparse.Namespace, rng: random.Random) -> float:
    """Prompts one after the other, each for one token; ms a prompt, the median."""
    return statistics.median(
        [
            (await lab.turn(tokens, session_id=SessionId(new_id("s")))).ttft_ms
            for tokens in _prompts(args.prompts, args.prompt_tokens, rng)
        ]
    )


async def _decode(lab: Lab, batch: int, tokens: int, rng: random.Random) -> float:
    """Decode `batch` turns together; ms a step between the last first token and the first end."""
    started = [
        lab.begin(prompt, tokens, session_id=SessionId(new_id("s")))
        for prompt in _prompts(batch, PROMPT_TOKENS, rng)
    ]
    await asyncio.gather(*(task for _, task in started))
    traces = [trace for trace, _ in started]
    begin = max(trace.token_at[0] for trace in traces)
    end = min(trace.token_at[-1] for trace in traces)
    num_steps = sum(begin < at <= end for at in traces[0].token_at)
    return (end - begin) / num_steps * 1e3


def _prompts(num: int, num_tokens: int, rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(VOCAB) for _ in range(num_tokens)] for _ in range(num)]


def _summary(ms: Figures, prefix: str) -> dict[str, Any]:
    """Medians by side, and how much slower each is than the one that writes nothing.

    >>> _summary({"on": [11.0], "off": [10.0]}, "")["slowdown_percent"]
    10.0
    """
    medians = {side: statistics.median(each) for side, each in ms.items()}
    slower = {side: round((ms / medians["off"] - 1) * 100, 1) for side, ms in medians.items()}
    result: dict[str, Any] = {
        f"{prefix}{side}_ms": round(median, 2) for side, median in medians.items()
    }
    result[f"{prefix}slowdown_percent"] = slower["on"]
    for side in slower.keys() - {"on", "off"}:
        result[f"{prefix}{side}_slowdown_percent"] = slower[side]
    for side, each in ms.items():
        result[f"{prefix}rounds_{side}_ms"] = [round(one, 2) for one in each]
    return result


def _say(side: str, ms: float, what: str) -> None:
    print(f"{side}: {ms:.2f} ms {what}", file=sys.stderr, flush=True)
