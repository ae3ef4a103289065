"""``symphony bench engine``: the engine beside transformers' own generation, on one model.

Decode: milliseconds a step at each batch size, every sequence `--context` tokens long. Prefill:
prompt tokens a second. Both sides run in turns in one process, so that a noisy machine is noisy for
both; transformers runs with its eager and its SDPA attention, and the faster one counts. "In turn"
is ours without planning a step while another one runs; the device's idle share is of both.

`--record FILE` writes every step of ours, to be run again on any device and by any release:
`--replay FILE` runs them, without core and without transformers, and compares the tokens.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, get_args

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from loadtest.bench.recording import RecordedStep, read_steps, write_step
from loadtest.in_process_engine import InProcessEngine, some_prompt
from loadtest.model_cache import cache_name
from loadtest.models import add_model_options, model_source, shape_of
from services.worker.core.step import StepPlan
from services.worker.device.base.executor import Executor, Finished, RecordsNothing
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.layers import Mode
from services.worker.device.model import load_model
from shared.errors import InvalidRequest

ROUNDS = 3


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return ``{"ours": {...}, "transformers": {...}, "ratio": {...}, ...}``."""
    parser = argparse.ArgumentParser(prog="symphony bench engine", description=__doc__)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", choices=get_args(Mode), default="fast", help="on a CPU")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    add_model_options(parser)
    args = parser.parse_args(argv)
    source = model_source(args, args.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.replay is not None:
        return replay(load_model(source, device, "auto", args.layers), args.replay)
    with ThreadPoolExecutor(1) as thread:  # both sides compute in it, and nowhere else
        return _compare(source, device, args, thread)


def _compare(
    source: str, device: str, args: argparse.Namespace, thread: ThreadPoolExecutor
) -> dict[str, Any]:
    ours = _Ours(source, device, args, thread)
    theirs = {
        name: _Transformers(thread, thread.submit(_plain_model, source, device, name).result())
        for name in ("eager", "sdpa")
    }
    figures: dict[str, Any] = {
        "ours": {}, "transformers": {}, "ratio": {}, "in_turn": {}, "device_idle_share": {},
    }  # fmt: skip
    sides: dict[str, Any] = {"ours": ours, "in turn": _InTurn(ours), **theirs}
    for batch in (int(size) for size in args.batch.split(",")):
        key = f"decode_ms_batch_{batch}"
        decode = partial(_decode_ms, batch=batch, context=args.context, steps=args.steps)
        samples = _interleave(sides, decode)
        _enter(figures, key, samples, min)
        shares = {name: round(share, 4) for name, share in ours.idle_shares.items()}
        figures["device_idle_share"][f"batch_{batch}"] = shares
    del sides["in turn"]
    samples = _interleave(sides, lambda side: side.prefill_tokens_per_s(args.prompt))
    _enter(figures, "prefill_tokens_per_s", samples, max)
    ours.close()
    return figures


def replay(model: LoadedModel, path: Path) -> dict[str, Any]:
    """Run a recording's steps on this device.

    Returns:
        Milliseconds of the median decode step by number of rows, prompt tokens a second, and how
        many of the tokens are others than those recorded.

    Raises:
        InvalidRequest: the file cannot be read, or is of a model of another shape.
    """
    try:
        with path.open("rb") as file:
            steps = list(read_steps(file))
    except OSError as error:
        raise InvalidRequest(f"cannot read the recording {path}: {error}") from None
    executor = TorchExecutor(model, "bench", _num_pages(steps, model), lambda _: None)
    executor.warm_up()
    decode_ms: dict[int, list[float]] = {}
    num_prefill, prefill_s, num_tokens, num_others = 0, 0.0, 0, 0
    for step in steps:
        started = time.perf_counter()
        result = executor.launch(step.plan).result()
        took_s = time.perf_counter() - started
        if step.plan.num_prefill_tokens:
            num_prefill += step.plan.num_prefill_tokens
            prefill_s += took_s
        else:
            decode_ms.setdefault(step.plan.num_rows, []).append(took_s * 1e3)
        chosen = [None if each is None else each.token for each in result.sampled]
        num_tokens += len(chosen) - chosen.count(None)
        num_others += sum(ours != theirs for ours, theirs in zip(chosen, step.tokens, strict=True))
    executor.close()
    return {
        "decode_ms": {rows: round(statistics.median(ms), 2) for rows, ms in decode_ms.items()},
        "prefill_tokens_per_s": round(num_prefill / prefill_s, 2) if prefill_s else None,
        "num_steps": len(steps),
        "num_tokens": num_tokens,
        "num_other_tokens": num_others,
    }


def _num_pages(steps: list[RecordedStep], model: LoadedModel) -> int:
    """Pages that a recording needs."""
    tables = [step.plan.entries.pages for step in steps if len(step.plan.entries.pages)]
    if not tables or any(pages.shape[1] != model.num_layers for pages in tables):
        raise InvalidRequest(f"the recording is not of a model with {model.num_layers} layers")
    tokens_max = max(int(step.plan.tokens.max()) for step in steps)
    if tokens_max >= model.vocab_size:
        raise InvalidRequest(f"the recording is not of a vocabulary of {model.vocab_size} tokens")
    return 1 + max(int(pages.max()) for pages in tables)


def _decode_ms(side: Any, *, batch: int, context: int, steps: int) -> float:
    ms: float = side.decode_ms(batch, context, steps)
    return ms


def _interleave(sides: dict[str, Any], measure: Callable[[Any], float]) -> dict[str, float]:
    """Medians of `ROUNDS` rounds in which every side takes its turn."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            samples[name].append(measure(side))
    return {name: statistics.median(values) for name, values in samples.items()}


def _enter(
    figures: dict[str, Any], key: str, samples: dict[str, float], best: Callable[..., float]
) -> None:
    theirs = best(samples["eager"], samples["sdpa"])
    figures["ours"][key] = round(samples["ours"], 2)
    figures["transformers"][key] = round(theirs, 2)
    speedup = theirs / samples["ours"] if best is min else samples["ours"] / theirs
    figures["ratio"][key] = round(speedup, 2)
    if "in turn" in samples:
        figures["in_turn"][key] = round(samples["in turn"], 2)
    print(key, {k: round(v, 2) for k, v in samples.items()}, file=sys.stderr, flush=True)


class _Ours:
    """The production runner and executor, without a network.

    Attributes:
        idle_shares: of the latest decodes' time, in which the device waited between steps.
    """

    def __init__(
        self, source: str, device: str, args: argparse.Namespace, thread: ThreadPoolExecutor
    ) -> None:
        self._thread = thread
        self._vocab_size = shape_of(source).vocab_size
        self._record = None if args.record is None else _open_new(args.record)
        executor = thread.submit(self._load, source, device, args).result()
        self._executor = executor if self._record is None else _Recorder(executor, self._record)
        self._num_prompts = 0
        self.idle_shares: dict[str, float] = {}

    def _load(self, source: str, device: str, args: argparse.Namespace) -> TorchExecutor:
        model = load_model(source, device, "auto", args.layers)
        tokens = max(int(b) for b in args.batch.split(",")) * (args.context + 2 * args.steps + 64)
        num_pages = (max(tokens, args.prompt) // 64 + 64) * model.num_layers
        executor = TorchExecutor(model, "bench", num_pages, lambda _: None)
        executor.warm_up()
        return executor

    def decode_ms(self, batch: int, context: int, steps: int, steps_ahead_max: int = 1) -> float:
        engine = InProcessEngine(self._executor, self._thread, 64 * 1024, steps_ahead_max)
        for _ in range(batch):
            engine.submit(self._prompt(context), steps + 2)
        engine.run()
        # All prompts fit in one step; the first decode is warm-up.
        at_ns = engine.times_ns()
        assert len(at_ns) == steps + 1, "turns did not stay together"
        device = engine.core.steps.device_time
        name = "ahead" if steps_ahead_max else "in turn"
        self.idle_shares[name] = device.idle_ns / (device.busy_ns + device.idle_ns)
        return (at_ns[-1] - at_ns[0]) / steps / 1e6

    def prefill_tokens_per_s(self, length: int) -> float:
        engine = InProcessEngine(self._executor, self._thread, self._executor.prefill_tokens_max)
        engine.submit(self._prompt(length), 1)
        engine.run()
        return length / engine.first_s()

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
        self._executor.close()

    def _prompt(self, length: int) -> list[int]:
        self._num_prompts += 1
        return some_prompt(self._num_prompts, length, self._vocab_size)


@dataclass(slots=True)
class _InTurn:
    """Our side without planning ahead."""

    ours: _Ours

    def decode_ms(self, batch: int, context: int, steps: int) -> float:
        return self.ours.decode_ms(batch, context, steps, steps_ahead_max=0)


class _Recorder(RecordsNothing):
    """An executor that writes down what it runs."""

    def __init__(self, executor: Executor, file: BinaryIO) -> None:
        self._executor = executor
        self._file = file
        self.info = executor.info
        self.prefill_tokens_max = executor.prefill_tokens_max
        self.mover = executor.mover
        self.builder = executor.builder
        self.grammars = executor.grammars

    @property
    def assist_tokens(self) -> int:
        return self._executor.assist_tokens

    def launch(self, plan: StepPlan) -> Finished:
        result = self._executor.launch(plan).result()
        write_step(self._file, plan, result)
        return Finished(result)

    def check_device(self) -> None:
        self._executor.check_device()

    def close(self) -> None:
        self._executor.close()


def _open_new(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise InvalidRequest(f"cannot write the recording {path}: {error}") from None


def _plain_model(source: str, device: str, attention: str) -> Any:
    """transformers' own, with its own attention."""
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype="auto", attn_implementation=attention
    )
    return model.to(device)


@dataclass(slots=True)
class _Transformers:
    """transformers' own forward pass with its own cache."""

    thread: ThreadPoolExecutor
    model: Any

    def decode_ms(self, batch: int, context: int, steps: int) -> float:
        return self.thread.submit(self._decode_ms, batch, context, steps).result()

    def prefill_tokens_per_s(self, length: int) -> float:
        return self.thread.submit(self._prefill_tokens_per_s, length).result()

    @torch.inference_mode()
    def _decode_ms(self, batch: int, context: int, steps: int) -> float:
        cache = DynamicCache()
        vocab = self.model.config.vocab_size
        ids = torch.tensor([some_prompt(n, context, vocab) for n in range(batch)])
        ids = ids.to(self.model.device)
        chunk = 128  # a whole batched prefill at once would need gigabytes for its scores
        for start in range(0, context, chunk):
            self._forward(ids[:, start : start + chunk], cache)
        token = ids[:, -1:]
        token = self._forward(token, cache)
        started = time.perf_counter()
        for _ in range(steps):
            token = self._forward(token, cache)
            token.tolist()
        return (time.perf_counter() - started) / steps * 1e3

    @torch.inference_mode()
    def _prefill_tokens_per_s(self, length: int) -> float:
        vocab = self.model.config.vocab_size
        ids = torch.tensor([some_prompt(1, length, vocab)]).to(self.model.device)
        started = time.perf_counter()
        self._forward(ids, DynamicCache()).tolist()
        return length / (time.perf_counter() - started)

    def _forward(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        named = {cache_name(self.model): cache}
        logits = self.model(ids, **named, use_cache=True, logits_to_keep=1).logits
        token: torch.Tensor = logits[:, -1].argmax(-1, keepdim=True)
        return token
