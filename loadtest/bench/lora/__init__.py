"""``symphony bench lora``: what turns on adapters cost, beside the same turns without and beside
transformers + PEFT.

Decode: the median step of a batch in which each turn has an adapter of its own (`ratio`), all have
the same (`identical_ratio`), or they share some as in Punica, section 7 (`uniform_ratio`,
`skewed_ratio`), beside the same batch on the backbone alone: the base model in the same engine,
whose layers have their hooks. The bound is the backbone's step and reading each adapter once at the
streaming rate, which is measured in between. Prefill: time to the first token of a prompt. PEFT
runs the distinct adapters one after another in batches of one (`over_peft_one_adapter`, tokens a
second), and in its own mixed batches (`over_peft_mixed`). All take turns in one process; adapters
are in the pool before anything is timed. Nothing is measured if our tokens are not PEFT's.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadtest.bench.lora.agreement import LENGTHS, NUM_TOKENS, refuse_if_wrong
from loadtest.bench.lora.made import TARGETS, MadeAdapter, make_adapters
from loadtest.bench.lora.ours import DECODES_BUDGET, Ours, Rows, Serving
from loadtest.bench.lora.peft_side import PeftSide
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.models import add_model_options, model_source
from loadtest.options import numbers
from loadtest.streaming import Stream
from shared.errors import InvalidRequest

ALWAYS = ("distinct", "identical")
BACKBONE = "backbone"

Samples = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    batches: list[int]
    popularities: list[str]
    ranks: list[int]
    targets: str
    context: int
    steps: int
    prompt: int
    rounds: int

    @property
    def num_tokens(self) -> int:
        """Of all turns of the largest batch, of every popularity and the backbone."""
        turns = max(self.batches) * (1 + len(self.popularities))
        decoded = turns * (self.context + self.steps + 128)
        return max(decoded, 2 * self.rounds * (self.prompt + 128))


def run(argv: list[str]) -> dict[str, Any]:
    """Check, then measure: milliseconds of each side, and what they come to.

    Raises:
        InvalidRequest: an option is wrong, or the model takes no such adapters.
        WrongTokens: our tokens are not PEFT's; nothing is measured then.
    """
    args = _parser().parse_args(argv)
    plan = _plan(args)
    source = model_source(args, args.dtype)
    # Both sides compute in the thread, and nowhere else.
    with ThreadPoolExecutor(1) as thread, TemporaryDirectory() as folder:
        ours = Ours(source, thread)
        if ours.model.lora is None:
            raise InvalidRequest(f"--model {args.model}: it takes no adapters")
        count = max(plan.batches)
        adapters = make_adapters(
            Path(folder), ours.model.lora, plan.targets, plan.ranks, max(count, 2)
        )
        ours.open(adapters, Path(folder), plan.num_tokens)
        peft = PeftSide(source, adapters, thread)
        try:
            bench = _Bench(ours, peft, adapters, plan, thread, args.memory_mb << 20)
            return bench.measure()
        finally:
            ours.close()


class _Bench:
    def __init__(
        self,
        ours: Ours,
        peft: PeftSide,
        adapters: list[MadeAdapter],
        plan: _Plan,
        thread: ThreadPoolExecutor,
        memory_bytes: int,
    ) -> None:
        self._ours = ours
        self._peft = peft
        self._adapters = adapters
        self._plan = plan
        self._thread = thread
        self._memory_bytes = memory_bytes

    def measure(self) -> dict[str, Any]:
        plan, figures = self._plan, defaultdict[str, Any](dict)
        figures["tokens_equal"] = self._check()
        dtype = self._ours.model.dtype
        stream = self._thread.submit(Stream, dtype, self._memory_bytes).result()
        figures["adapter_mb"] = round(self._adapters[0].weight_bytes / 1e6, 3)
        decodes = {batch: self._decode(batch, stream) for batch in plan.batches}
        rate = stream.gb_per_s()
        figures["stream_gb_per_s"] = round(rate, 2)
        for batch, samples in decodes.items():
            distinct_bytes = sum(each.weight_bytes for each in self._adapters[:batch])
            _enter(figures, batch, samples, distinct_bytes / rate / 1e6)
        prefill = _medians(self._prefill())
        figures["prefill_ms"] = {name: round(ms, 2) for name, ms in prefill.items()}
        figures["prefill_ratio"] = round(prefill[BACKBONE] / prefill["adapter"], 3)
        return dict(figures)

    def _check(self) -> int:
        model, adapters = self._ours.model, self._adapters
        serving = self._ours.start(adapters, max(LENGTHS) + NUM_TOKENS)
        num = refuse_if_wrong(serving, self._peft, adapters, model.dtype, model.vocab_size)
        _say(f"{num} tokens are PEFT's")
        return num

    def _decode(self, batch: int, stream: Stream) -> Samples:
        """Milliseconds of a step of each side, which take turns."""
        plan, adapters = self._plan, self._adapters[:batch]
        serving = self._ours.start(adapters, DECODES_BUDGET)
        self._peft.begin_mixed(adapters, plan.context)
        samples: Samples = defaultdict(list)
        for number in range(plan.rounds):
            self._thread.submit(stream.measure).result()
            for name in (BACKBONE, *plan.popularities):
                rows = _rows(adapters, name)
                samples[name].append(serving.decode_ms(rows, plan.context, plan.steps))
            alone = adapters[number % batch]
            one_ms = self._peft.one_adapter_ms(alone, plan.context, plan.steps)
            samples["peft_one_adapter"].append(one_ms)
            samples["peft_mixed"].append(self._peft.mixed_ms(plan.steps))
        self._peft.end_mixed()
        _say(f"batch {batch}", _medians(samples))
        return samples

    def _prefill(self) -> Samples:
        plan, adapter = self._plan, self._adapters[0]
        serving: Serving = self._ours.start([adapter], plan.prompt)
        sides = {BACKBONE: None, "adapter": adapter}
        samples: Samples = defaultdict(list)
        for _ in range(plan.rounds + 1):
            for name, on in sides.items():
                samples[name].append(serving.first_token_ms(on, plan.prompt))
        warm = {name: each[1:] for name, each in samples.items()}
        _say(f"prefill of {plan.prompt}", _medians(warm))
        return warm


def _rows(adapters: list[MadeAdapter], name: str) -> Rows:
    """A batch of as many turns as there are adapters."""
    if name == BACKBONE:
        return [None] * len(adapters)
    counts = POPULARITIES[name](len(adapters))
    return [each for each, count in zip(adapters, counts, strict=False) for _ in range(count)]


def _enter(figures: dict[str, Any], batch: int, samples: Samples, read_ms: float) -> None:
    """Figures of a batch whose distinct adapters are read in `read_ms`."""
    ms = _medians(samples)
    key = f"batch_{batch}"
    backbone, distinct = ms[BACKBONE], ms["distinct"]
    bound = backbone / (backbone + read_ms)
    for name, each in ms.items():
        figures[f"{name}_ms"][key] = round(each, 2)
        if name in POPULARITIES:
            ratio = "ratio" if name == "distinct" else f"{name}_ratio"
            figures[ratio][key] = round(backbone / each, 3)
    figures["bound_ratio"][key] = round(bound, 3)
    figures["share_of_bound"][key] = round(backbone / distinct / bound, 3)
    figures["over_peft_one_adapter"][key] = round(batch * ms["peft_one_adapter"] / distinct, 2)
    figures["over_peft_mixed"][key] = round(ms["peft_mixed"] / distinct, 2)


def _medians(samples: Samples) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in samples.items()}


def _say(text: str, ms: dict[str, float] | None = None) -> None:
    shown = "".join(f"  {name} {each:.2f}" for name, each in (ms or {}).items())
    print(f"{text}{': ms' if ms else ''}{shown}", file=sys.stderr, flush=True)


def _plan(args: argparse.Namespace) -> _Plan:
    asked = args.popularity.split(",")
    if unknown := [each for each in asked if each not in POPULARITIES]:
        raise InvalidRequest(f"--popularity {unknown[0]}: use some of {', '.join(POPULARITIES)}")
    return _Plan(
        batches=numbers("batch", args.batch),
        popularities=list(dict.fromkeys([*ALWAYS, *asked])),
        ranks=numbers("ranks", args.ranks),
        targets=args.targets,
        context=args.context,
        steps=args.steps,
        prompt=args.prompt,
        rounds=args.rounds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench lora", description=__doc__)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument(
        "--popularity",
        default="distinct",
        help=f"{', '.join(POPULARITIES)}; {' and '.join(ALWAYS)} are measured in any case",
    )
    parser.add_argument("--ranks", default="16", help="that adapters have in turn")
    parser.add_argument("--targets", choices=TARGETS, default="all", help="linear layers")
    parser.add_argument("--context", type=int, default=512, help="tokens of each turn")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prefill")
    parser.add_argument("--rounds", type=int, default=7, help="of each figure, the median counts")
    parser.add_argument("--dtype", default="bfloat16", help="of random weights")
    parser.add_argument("--memory-mb", type=int, default=1024, help="read to measure the rate")
    add_model_options(parser)
    return parser
