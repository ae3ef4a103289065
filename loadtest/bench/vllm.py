"""``symphony bench vllm``: our worker on vLLM beside vLLM alone, on the same machine.

Two workers run, each with a vLLM of its own: one with the connector and a kvstore, one without:
stock vLLM behind our shell. They are measured in turns, so that a busy machine costs both alike:
decoding, turns that return, a mixed load (see `vllm_mixed`).
Then one of them stands beside ``vllm serve``: what its process, without the engine's, computes for
each token that it sends. ``SYMPHONY_VLLM_PYTHON`` names a Python that has vLLM.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import httpx

from cli.base.children import free_port, start_child, stop_child
from loadtest.bench.lab import Lab, open_labs
from loadtest.bench.page_cache import drop_kvstore_files
from loadtest.bench.vllm_mixed import HINTED_S, MixedRun, make_load
from loadtest.models import add_model_options, model_source, shape_of
from loadtest.starting import Waiting
from shared.blocks import BLOCK_TOKENS, chain_keys, pack_keys, root_key
from shared.errors import ConfigError, PeerUnavailable
from shared.ids import DEFAULT_TENANT, HostId, ModelId, SessionId
from shared.wire.messages import Prefetch

PROMPT_TOKENS = 64
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
ARENA_POOLS = 3  # host memory, in sizes of vLLM's cache: holds all sessions of the mixed load
SERVE = "vllm.entrypoints.openai.api_server"


def run(argv: list[str]) -> dict[str, Any]:
    """Measure; times are medians, ratios are the connector's over stock's."""
    parser = argparse.ArgumentParser(prog="symphony bench vllm", description=__doc__)
    parser.add_argument("--history-tokens", type=int, default=2000)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve-rows", type=int, default=128)
    parser.add_argument("--load-turns-per-s", type=float, default=0.5)
    parser.add_argument("--load-s", type=float, default=90.0)
    parser.add_argument("--dtype", default="bfloat16")
    add_model_options(parser)
    args = parser.parse_args(argv)
    python = os.environ.get("SYMPHONY_VLLM_PYTHON", "")
    if not python:
        raise ConfigError("SYMPHONY_VLLM_PYTHON names no Python with vLLM: see docs/engines.md")
    model = model_source(args, args.dtype)
    return asyncio.run(_measure(args, python, model))


async def _measure(args: argparse.Namespace, python: str, model: str) -> dict[str, Any]:
    rows = [int(word) for word in args.rows.split(",")]
    most = max(*rows, args.serve_rows)
    row_blocks = (PROMPT_TOKENS + args.new_tokens) // BLOCK_TOKENS + 1
    history_blocks = args.history_tokens // BLOCK_TOKENS + 2
    num_blocks = max(most * row_blocks, 3 * history_blocks)
    settings = {
        "engine": "vllm",
        "models": json.dumps([model]),
        "dtype": args.dtype,
        "turns_running_max": str(most),
        "num_threads": "1" if (os.cpu_count() or 1) <= 2 else "0",
        "vllm_args": json.dumps(
            {"num_gpu_blocks_override": num_blocks, "skip_tokenizer_init": True}
        ),
        "arena_bytes": str(ARENA_POOLS * num_blocks * BLOCK_TOKENS * shape_of(model).token_bytes),
    }
    async with open_labs(HostId("ours"), HostId("stock"), **settings) as (ours, stock):
        await ours.start("kvstore")
        await ours.start("worker", python=python)
        await stock.start("worker", python=python, write_behind="false")
        await ours.wait_connected()
        bench = _Bench(args, ours, stock, shape_of(model).vocab_size, num_blocks)
        figures: dict[str, Any] = {}
        for num_rows in rows:
            figures[f"decode_{num_rows}"] = await bench.decode(num_rows)
        figures["returning"] = await bench.returning()
        target_ms = figures["returning"]["stock_computed"]
        figures["mixed"] = await bench.mixed(target_ms)
        cpu_us = await bench.cpu_us_per_token(args.serve_rows)
        ours.stop("worker")
        stock.stop("worker")
        serve_us = await _serve_cpu_us(args, python, model, num_blocks, stock.directory)
        figures["worker_cpu_us_per_token"] = cpu_us
        figures["serve_cpu_us_per_token"] = serve_us
        figures["cpu_ratio"] = round(cpu_us / serve_us, 2)
    return figures


class _Bench:
    def __init__(
        self, args: argparse.Namespace, ours: Lab, stock: Lab, vocab_size: int, num_blocks: int
    ) -> None:
        self._args = args
        self._labs = {"ours": ours, "stock": stock}
        self._rng = random.Random(1)
        self._vocab_size = vocab_size
        self._num_blocks = num_blocks

    async def decode(self, num_rows: int) -> dict[str, float]:
        """Tokens a second of so many rows, behind their first ones."""
        speeds: dict[str, list[float]] = {name: [] for name in self._labs}
        for number in range(self._args.rounds + 1):
            for name, lab in self._labs.items():
                speed = await self._decode(lab, num_rows)
                if number:  # the first warms up
                    speeds[name].append(speed)
        medians = {name: statistics.median(each) for name, each in speeds.items()}
        _say(f"{num_rows} rows: {medians}")
        ratio = round(medians["ours"] / medians["stock"], 3)
        return {**{name: round(each, 1) for name, each in medians.items()}, "ratio": ratio}

    async def _decode(self, lab: Lab, num_rows: int) -> float:
        num_new = self._args.new_tokens
        begun = [lab.begin(self._tokens(PROMPT_TOKENS), num_new) for _ in range(num_rows)]
        await asyncio.gather(*(task for _, task in begun))
        first = max(trace.token_at[0] for trace, _ in begun)
        last = max(trace.token_at[-1] for trace, _ in begun)
        num_tokens = sum(at > first for trace, _ in begun for at in trace.token_at)
        return num_tokens / (last - first)

    async def returning(self) -> dict[str, float]:
        """First token of a turn behind a history that is nowhere, in vLLM's cache, or below."""
        times: dict[str, list[float]] = {}
        for number in range(self._args.rounds):
            history = self._tokens(self._args.history_tokens)
            session = SessionId(f"s{number}")
            for name, lab in self._labs.items():
                await self._turn(times, f"{name}_computed", lab, history, session, 0)
                await self._turn(times, f"{name}_prefix_hit", lab, history, session, 1)
            ours = self._labs["ours"]
            await ours.wait_durable(1)
            for name, hinted, leave in (
                ("ours_host_memory", "ours_hinted", self._fill),
                ("ours_disk", "ours_disk_hinted", self._leave_on_disk),
            ):
                await leave(ours)
                await self._turn(times, name, ours, history, session, 1)
                await leave(ours)
                await ours.prefetch(_hint(ours, session, history))
                await asyncio.sleep(HINTED_S)
                await self._turn(times, hinted, ours, history, session, 1)
            _say(f"session {number}")
        found = {name: round(statistics.median(each), 1) for name, each in times.items()}
        hit_ms = found["stock_prefix_hit"]
        return {
            **found,
            "host_over_stock_hit": round(found["ours_host_memory"] / hit_ms, 2),
            "hinted_over_stock_hit": round(found["ours_hinted"] / hit_ms, 2),
            "stock_computed_over_host": round(
                found["stock_computed"] / found["ours_host_memory"], 1
            ),
        }

    async def _turn(
        self,
        times: dict[str, list[float]],
        name: str,
        lab: Lab,
        history: list[int],
        session: SessionId,
        cached_share: float,
    ) -> None:
        tokens = [*history, *self._tokens(20)]
        trace = await lab.turn(tokens, session_id=session)
        expected = cached_share * (len(history) // BLOCK_TOKENS * BLOCK_TOKENS)
        if trace.cached_tokens < expected:
            raise PeerUnavailable(f"{name}: {trace.cached_tokens} of {expected} were cached")
        times.setdefault(name, []).append(trace.ttft_ms)

    async def mixed(self, target_ms: float) -> dict[str, Any]:
        """A load whose KV exceeds vLLM's cache twice; a first token is good within `target_ms`."""
        args, ours = self._args, self._labs["ours"]
        num_sessions = ceil(2 * self._num_blocks * BLOCK_TOKENS / args.history_tokens)
        load = make_load(
            num_sessions, args.history_tokens, args.load_turns_per_s, args.load_s, self._vocab_size
        )
        _say(f"{num_sessions} sessions, {len(load.turns)} turns")

        async def hint(session_id: SessionId, history: list[int]) -> None:
            await ours.prefetch(_hint(ours, session_id, history))

        ways = {
            "stock": MixedRun(self._labs["stock"], load, "stock"),
            "ours": MixedRun(ours, load, "ours"),
            "ours_hinted": MixedRun(ours, load, "hinted", hint),
        }
        figures: dict[str, Any] = {}
        for name, way in ways.items():
            figures[name] = await way.run(target_ms)
            _say(f"{name}: {figures[name]}")
        return figures

    async def _leave_on_disk(self, lab: Lab) -> None:
        """Nothing is in vLLM's cache, in host memory, or in memory of the disk's files."""
        await lab.wait_written()
        lab.stop("kvstore")
        if not drop_kvstore_files(lab.directory):
            raise PeerUnavailable("the kernel keeps the kvstore's files in memory")
        lab.mark_log("worker")
        await lab.start("kvstore")
        await lab.wait_connected()
        await self._fill(lab)

    async def _fill(self, lab: Lab) -> None:
        """Other prompts take all of vLLM's cache."""
        left = self._num_blocks * BLOCK_TOKENS
        while left > 0:
            await lab.turn(self._tokens(self._args.history_tokens))
            left -= self._args.history_tokens

    async def cpu_us_per_token(self, num_rows: int) -> float:
        """Of the worker's process, while so many rows decode and their KV is stored."""
        lab, costs = self._labs["ours"], []
        for _ in range(self._args.rounds):
            before = _cpu_s(lab.pid("worker"))
            await self._decode(lab, num_rows)
            costs.append(_cpu_s(lab.pid("worker")) - before)
        num_tokens: int = num_rows * self._args.new_tokens
        return round(statistics.median(costs) / num_tokens * 1e6, 1)

    def _tokens(self, number: int) -> list[int]:
        return [self._rng.randrange(3, self._vocab_size) for _ in range(number)]


async def _serve_cpu_us(
    args: argparse.Namespace, python: str, model: str, num_blocks: int, directory: Path
) -> float:
    """The same of a stock server's process, which has the engine in another one too."""
    port = free_port()
    env = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        python, "-m", SERVE, "--model", model, "--dtype", args.dtype, "--enforce-eager",
        "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(num_blocks),
        "--max-num-seqs", str(args.serve_rows), "--port", str(port), "--skip-tokenizer-init",
    ]  # fmt: skip
    server = start_child(command, log_path=directory / "serve.log", env=env)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
            await _wait_healthy(client, server)
            costs = []
            rng = random.Random(2)
            vocab_size = shape_of(model).vocab_size
            for _ in range(args.rounds):
                before = _cpu_s(server.pid)
                await asyncio.gather(
                    *(
                        _stream(client, model, args.new_tokens, rng, vocab_size)
                        for _ in range(args.serve_rows)
                    )
                )
                costs.append(_cpu_s(server.pid) - before)
    finally:
        stop_child(server)
    num_tokens: int = args.serve_rows * args.new_tokens
    return round(statistics.median(costs) / num_tokens * 1e6, 1)


async def _stream(
    client: httpx.AsyncClient, model: str, num_tokens: int, rng: random.Random, vocab_size: int
) -> None:
    body = {
        "model": model,
        "prompt": [rng.randrange(3, vocab_size) for _ in range(PROMPT_TOKENS)],
        "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "return_token_ids": True, "detokenize": False,
    }  # fmt: skip
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_lines():
            pass


async def _wait_healthy(client: httpx.AsyncClient, server: "subprocess.Popen[bytes]") -> None:
    waiting = Waiting("vllm serve is ready")
    while True:
        if server.poll() is not None:
            raise PeerUnavailable("vllm serve has ended")
        with suppress(httpx.TransportError):
            if (await client.get("/health")).status_code == httpx.codes.OK:
                return
        waiting.check()
        await asyncio.sleep(0.5)


def _hint(lab: Lab, session_id: SessionId, history: list[int]) -> Prefetch:
    """As the scheduler sends it of blocks that have no session's record."""
    keys = chain_keys(root_key(lab.card.fingerprint, DEFAULT_TENANT), history)
    return Prefetch(
        session_id=session_id, model_id=ModelId(lab.card.model_id), keys=pack_keys(keys)
    )


def _cpu_s(pid: int) -> float:
    """Processor time of a process, all its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
