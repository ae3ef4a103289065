"""``symphony bench resume``: time to first token of a returning turn, by where its history is.

Several sessions with a history each are made; then each comes back with a few new tokens while its
history is (a) nowhere, (b) on disk, (c) in the host's arena, (d) in the worker's own pages. What it
says is its history from then on; of one, at most `tail_tokens` are computed again. The pool holds
little more than one session, so that a session's pages are gone when it comes back, unless it comes
back at once. For (b) the kvstore is restarted, so that its arena is empty; for `disk_cold_ms` the
kernel's page cache of its file is dropped as well, and that is checked.

With `--serial` the sessions come back once more from disk to a worker that does not load layer by
layer: `load_ms` is what all of the history takes then, `compute_ms` what the pass behind it takes,
and `streamed_ms` (both at once, as from disk above) stands beside them.
"""

import argparse
import asyncio
import random
import statistics
import sys
from typing import Any

from loadtest.bench.lab import Lab, Trace, open_lab
from loadtest.bench.page_cache import drop_kvstore_files
from loadtest.models import Shape, add_model_options, model_source, shape_of
from shared.ids import SessionId

BLOCK_TOKENS = 64
TURNS_MAX = 6  # of a session


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return ``{dtype: {"recompute_ms", "disk_ms", "arena_ms", "resident_ms", ...}}``
    merged with the first dtype's figures at top level."""
    parser = argparse.ArgumentParser(prog="symphony bench resume", description=__doc__)
    parser.add_argument("--history-tokens", type=int, default=2000)
    parser.add_argument("--new-tokens", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--serial", action="store_true", help="load, then compute, as well")
    parser.add_argument("--dtype", default="bfloat16,float32", help="of random weights")
    add_model_options(parser)
    args = parser.parse_args(argv)
    figures: dict[str, Any] = {}
    for dtype in args.dtype.split(",") if not args.model else ("",):
        model = model_source(args, dtype)
        shape = shape_of(model)
        figures[shape.dtype] = asyncio.run(_measure(args, model, shape))
    return {**next(iter(figures.values())), "by_dtype": figures}


async def _measure(args: argparse.Namespace, model: str, shape: Shape) -> dict[str, Any]:
    blocks = (args.history_tokens + TURNS_MAX * args.new_tokens) // BLOCK_TOKENS + 4
    session_bytes = blocks * BLOCK_TOKENS * shape.token_bytes
    settings = {
        "models": f'["{model}"]',
        "kv_bytes": str(int(1.4 * session_bytes)),
        "arena_bytes": str((args.sessions + 3) * session_bytes),
    }
    rng = random.Random(1)
    histories = [
        [rng.randrange(shape.vocab_size) for _ in range(args.history_tokens)]
        for _ in range(args.sessions)
    ]
    async with open_lab(**settings) as lab:
        await lab.start("kvstore")
        await lab.start("worker")
        await lab.wait_connected()
        _say(f"{shape.dtype}: warming up")
        await lab.turn([rng.randrange(shape.vocab_size) for _ in range(args.history_tokens)])
        bench = _Resume(lab, args, histories, rng, shape)
        figures = await bench.measure()
    figures["history_mb"] = round(args.history_tokens * shape.token_bytes / 1e6, 1)
    return figures


class _Resume:
    def __init__(
        self,
        lab: Lab,
        args: argparse.Namespace,
        histories: list[list[int]],
        rng: random.Random,
        shape: Shape,
    ) -> None:
        self._lab = lab
        self._vocab_size = shape.vocab_size
        self._num_layers = shape.num_layers
        self._args = args
        self._histories = histories
        self._rng = rng
        self._tail_tokens = 0

    async def measure(self) -> dict[str, Any]:
        recompute, resident, num_blocks = [], [], 0
        for number, history in enumerate(self._histories):
            history.extend(self._new())
            recompute.append((await self._lab.turn(history, session_id=_name(number))).ttft_ms)
            num_blocks += len(history) // BLOCK_TOKENS
            # Until it is on disk, writing it down would slow the return.
            await self._lab.wait_durable(num_blocks)
            resident.append(await self._return(number))
        _say("arena")
        before = self._lab.stall_ms_by_layer()
        arena = await self._return_all()
        stall_arena = self._stall(before)
        _say("disk")
        await self._restart_kvstore()
        before = self._lab.stall_ms_by_layer()
        disk = await self._return_all()
        stall_disk = self._stall(before)
        return {
            "recompute_ms": _median(recompute),
            "disk_ms": _median(disk),
            **await self._cold(),
            "arena_ms": _median(arena),
            "resident_ms": _median(resident),
            "tail_tokens": self._tail_tokens,
            **(await self._serial(_median(disk)) if self._args.serial else {}),
            "stall_ms_by_layer": stall_disk,
            "stall_ms_by_layer_arena": stall_arena,
            "disk_over_resident": round(_median(disk) / _median(resident), 2),
            "recompute_over_disk": round(_median(recompute) / _median(disk), 1),
        }

    async def _cold(self) -> dict[str, Any]:
        """From files that the kernel does not hold; without that there is no such figure."""
        await self._lab.wait_written()
        self._lab.stop("kvstore")
        is_dropped = drop_kvstore_files(self._lab.directory)
        await self._restart_kvstore()
        cold = await self._return_all()
        figures: dict[str, Any] = {"page_cache_dropped": is_dropped}
        return {**figures, "disk_cold_ms": _median(cold)} if is_dropped else figures

    async def _serial(self, streamed_ms: float) -> dict[str, float]:
        """From disk, loaded first and computed then."""
        _say("serial")
        await self._lab.wait_written()
        await self._lab.start("worker", layerwise="false")
        await self._lab.wait_connected()
        await self._lab.turn(self._histories[0][:BLOCK_TOKENS])
        await self._restart_kvstore()
        traces = [await self._back(number) for number in range(len(self._histories))]
        load_ms = _median([trace.queue_ms for trace in traces])
        compute_ms = _median([trace.prefill_ms for trace in traces])
        limit_ms = max(load_ms, compute_ms) + load_ms / self._num_layers
        return {
            "load_ms": load_ms,
            "compute_ms": compute_ms,
            "serial_ms": _median([trace.ttft_ms for trace in traces]),
            "streamed_ms": streamed_ms,
            "streamed_over_limit": round(streamed_ms / limit_ms, 2),
        }

    async def _return_all(self) -> list[float]:
        return [await self._return(number) for number in range(len(self._histories))]

    async def _return(self, number: int) -> float:
        return (await self._back(number)).ttft_ms

    async def _back(self, number: int) -> Trace:
        """A session's next turn; checks that its history was not computed again."""
        history = self._histories[number]
        num_history = len(history)
        history += self._new()
        trace = await self._lab.turn(history, session_id=_name(number), num_history=num_history)
        expected = num_history // BLOCK_TOKENS * BLOCK_TOKENS
        assert trace.cached_tokens >= expected, f"{trace.cached_tokens} of {expected} were cached"
        _say(f"  {num_history - trace.cached_tokens} of {num_history} tokens were computed again")
        self._tail_tokens = max(self._tail_tokens, num_history - trace.cached_tokens)
        return trace

    async def _restart_kvstore(self) -> None:
        await self._lab.wait_written()
        self._lab.mark_log("worker")
        await self._lab.start("kvstore")
        # The worker learns of the new kvstore at its next call; a turn of its own is one.
        await self._lab.turn(
            [self._rng.randrange(self._vocab_size) for _ in range(4 * BLOCK_TOKENS)]
        )
        await self._lab.wait_connected()

    def _stall(self, before: list[float]) -> list[float]:
        after = self._lab.stall_ms_by_layer()
        start = before or [0.0] * len(after)
        count = len(self._histories)
        return [round((b - a) / count, 2) for a, b in zip(start, after, strict=True)]

    def _new(self) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(self._args.new_tokens)]


def _name(number: int) -> SessionId:
    return SessionId(f"s{number}")


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
