"""``symphony bench grammar``: what holding replies to a grammar costs a decode step.

A batch of turns decodes with a JSON schema and without one, in turns in one process, through the
production core, step loop and executor. Masks are found beside the forward pass: what they add is
waiting for them, and choosing within them. Beside that the masks alone: how long one takes, in one
thread with nothing else to do, at every token of the replies.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llguidance import LLTokenizer

from loadtest.local_engine import LocalEngine, some_prompt
from loadtest.models import add_model_options, model_source
from services.frontend.core.structures import Structure, grammar_of
from services.worker.device.grammar import Vocabulary
from services.worker.device.model import load_model
from services.worker.device.torch_executor import TorchExecutor
from shared.grammar import matcher_of

MODEL = "smollm2-135m"  # whose words are some; those of random weights are not
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "role": {"enum": ["author", "editor", "reader"]},
        "born": {"type": "integer", "minimum": 1500, "maximum": 2026},
        "books": {"type": "array", "items": {"type": "string", "maxLength": 24}, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}, "zip": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "role", "born", "books", "address"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 1000}  # no reply comes to its end


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return ``{"plain_ms": ..., "grammar_ms": ..., "share_percent": ..., ...}``."""
    parser = argparse.ArgumentParser(prog="symphony bench grammar", description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    add_model_options(parser)
    parser.set_defaults(model=MODEL)
    args = parser.parse_args(argv)
    source = model_source(args, "bfloat16")
    grammar = grammar_of(Structure("bench", "json", PEOPLE))
    with ThreadPoolExecutor(1) as thread:
        executor = thread.submit(_load, source, args).result()
        started = time.perf_counter()
        flaw = executor.grammars.prepare(grammar).result()
        assert not flaw, flaw
        figures: dict[str, Any] = {"prepare_ms": _rounded((time.perf_counter() - started) * 1e3)}
        ms: dict[str, list[float]] = {"plain": [], "grammar": []}
        said: list[list[int]] = []
        for number in range(args.rounds + 1):
            for name, samples in ms.items():
                took_ms, tokens = _decode(executor, thread, args, grammar * (name == "grammar"))
                if number:  # the first warms up
                    samples.append(took_ms)
                    said += tokens if name == "grammar" else []
            last = {name: round(samples[-1], 2) for name, samples in ms.items() if samples}
            print(f"round {number}: {last}", file=sys.stderr, flush=True)
        executor.close()
    plain, held = statistics.median(ms["plain"]), statistics.median(ms["grammar"])
    info = executor.info
    vocabulary = Vocabulary(info.source, info.vocab_size, info.end_token_ids)
    figures |= {
        "plain_ms": _rounded(plain),
        "grammar_ms": _rounded(held),
        "share_percent": _rounded(100 * (held - plain) / plain),
        **_masks_alone(grammar, vocabulary.tokenizer(), said),
    }
    return figures


def _load(source: str, args: argparse.Namespace) -> TorchExecutor:
    model = load_model(source, "cpu", "auto", "fast")
    num_tokens = args.batch * (args.context + args.steps + 128)
    executor = TorchExecutor(model, "bench", num_tokens // 32 * model.num_layers, lambda _: None)
    executor.warm_up()
    return executor


def _decode(
    executor: TorchExecutor, thread: ThreadPoolExecutor, args: argparse.Namespace, grammar: str
) -> tuple[float, list[list[int]]]:
    """Milliseconds a step, and what the turns said."""
    engine = LocalEngine(executor, thread, 64 * 1024)
    turns = [
        engine.submit(
            some_prompt(number, args.context, executor.info.vocab_size), args.steps + 2,
            grammar=grammar,
        )
        for number in range(args.batch)
    ]  # fmt: skip
    engine.run()
    at_ns = [at_ns for at_ns, num_tokens in engine.said[1:] if num_tokens == args.batch]
    assert len(at_ns) == args.steps + 1, "turns did not stay together"
    return (at_ns[-1] - at_ns[0]) / args.steps / 1e6, [
        turn.tokens[args.context :] for turn in turns
    ]


def _masks_alone(grammar: str, tokenizer: LLTokenizer, said: list[list[int]]) -> dict[str, Any]:
    took_us = []
    for tokens in said:
        matcher = matcher_of(grammar, tokenizer)
        for token in tokens:
            started = time.perf_counter()
            matcher.compute_bitmask()
            took_us.append((time.perf_counter() - started) * 1e6)
            assert matcher.consume_token(token), "a token is not within the grammar"
    took_us.sort()
    return {
        "num_tokens": len(took_us),
        "mask_us_median": _rounded(statistics.median(took_us)),
        "mask_us_p99": _rounded(took_us[int(0.99 * len(took_us))]),
        "mask_us_max": _rounded(took_us[-1]),
    }


def _rounded(value: float) -> float:
    return round(value, 2)
