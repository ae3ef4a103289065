"""Whole requests on adapters, from their prompts to their last tokens (Punica, section 7.2).

All come at once, and each side takes them first come, first served, so many at a time: ours goes on
with the next one when one has ended; transformers + PEFT goes batch by batch, each as long as its
longest answer.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.bench.lora.agreement import LENGTHS, NUM_TOKENS, refuse_if_wrong
from loadtest.bench.lora.made import MadeAdapter, make_adapters
from loadtest.bench.lora.ours import Ours
from loadtest.bench.lora.peft_side import PeftSide
from loadtest.bench.lora.vllm_side import VllmPlan, VllmRun, vllm_tokens_per_s
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.in_process_engine import some_prompt
from services.worker.device.cpu.torch_executor import PREFILL_TOKENS
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest

SEED = 11
SPREAD = 0.6  # of lengths, whose logarithms are normal
LONGEST = 2  # times the median


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """Attributes:
    batch: requests that run at once, at most.
    prompt, said: median tokens of a request.
    enough_s: when a side that goes batch by batch has taken so long, it begins no further one.
    """

    num_requests: int
    batch: int
    prompt: int
    said: int
    enough_s: float

    @property
    def num_adapters(self) -> int:
        """That requests of any popularity are on."""
        return max(max(make_requests(self, name, 1).on) for name in POPULARITIES) + 1


@dataclass(frozen=True, slots=True)
class Requests:
    """Attributes:
    on: number of each one's adapter.
    counts: tokens that each says.
    """

    on: list[int]
    prompts: list[list[int]]
    counts: list[int]


def make_requests(plan: GenerationPlan, popularity: str, vocab_size: int) -> Requests:
    """From a seed: the same lengths whatever is popular, and prompts that no other popularity has.

    Of distinct ones, as many as run at once have adapters of their own.
    """
    rng = random.Random(SEED)
    lengths = [_length(rng, plan.prompt) for _ in range(plan.num_requests)]
    counts = [_length(rng, plan.said) for _ in range(plan.num_requests)]
    first = plan.num_requests * list(POPULARITIES).index(popularity)
    prompts = [some_prompt(first + n, length, vocab_size) for n, length in enumerate(lengths)]
    if popularity == "distinct":
        return Requests([n % plan.batch for n in range(plan.num_requests)], prompts, counts)
    of_adapter = POPULARITIES[popularity](plan.num_requests)
    on = [adapter for adapter, num in enumerate(of_adapter) for _ in range(num)]
    rng.shuffle(on)
    return Requests(on, prompts, counts)


def runs_of(keys: Iterable[object], most: int) -> Iterator[list[int]]:
    """Places of equal keys that follow each other, at most so many together: the batches of who can
    serve one adapter at a time.

    >>> list(runs_of("aabaaa", 2))
    [[0, 1], [2], [3, 4], [5]]
    """
    run: list[int] = []
    last: object = None
    for place, key in enumerate(keys):
        if run and (key != last or len(run) == most):
            yield run
            run = []
        run.append(place)
        last = key
    if run:
        yield run


class Generation:
    """Both sides with their adapters. Make with `open_generation`."""

    def __init__(
        self, ours: Ours, peft: PeftSide, adapters: Sequence[MadeAdapter], plan: GenerationPlan
    ) -> None:
        self._ours = ours
        self._peft = peft
        self._adapters = adapters
        self._plan = plan

    def check(self) -> None:
        """See that both sides say the same.

        Raises:
            WrongTokens: they do not.
        """
        model = self._ours.model
        serving = self._ours.start(self._adapters, max(LENGTHS) + NUM_TOKENS)
        refuse_if_wrong(serving, self._peft, list(self._adapters), model.dtype, model.vocab_size)

    def ours(self, popularity: str, *, on_base: bool = False) -> float:
        """Our tokens a second, adapters being there."""
        plan, requests = self._plan, self._requests(popularity)
        serving = self._ours.start(self._adapters, PREFILL_TOKENS, plan.batch)
        rows = [None if on_base else self._adapters[number] for number in requests.on]
        return sum(requests.counts) / serving.generate_s(rows, requests.prompts, requests.counts)

    def one_adapter(self, popularity: str) -> float:
        """PEFT's tokens a second in batches of one adapter; making it the active one is free."""
        requests = self._requests(popularity)
        return self._batches(requests, runs_of(requests.on, self._plan.batch))

    def mixed(self, popularity: str) -> float:
        """PEFT's tokens a second in its own mixed batches."""
        requests = self._requests(popularity)
        return self._batches(requests, runs_of([0] * len(requests.on), self._plan.batch))

    def transformers(self) -> float:
        """Theirs on the base model alone."""
        requests = self._requests("identical")
        batches = runs_of(requests.on, self._plan.batch)
        return self._batches(requests, batches, on_base=True)

    def vllm(self) -> dict[str, float]:
        """vLLM's tokens a second by popularity, and on the base model alone as `base`; none where
        it is not there. It computes all requests once before, which is not counted.
        """
        plan, model = self._plan, self._ours.model
        runs = {name: self._vllm_run(name) for name in POPULARITIES}
        base = replace(runs["identical"], folders=[""] * plan.num_requests)
        return vllm_tokens_per_s(
            VllmPlan(
                source=model.source,
                dtype=str(model.dtype).removeprefix("torch."),
                batch=plan.batch,
                rank=max(self._adapters[0].ref.ranks.values()),
                runs={"base": base, **runs},
            )
        )

    def _vllm_run(self, popularity: str) -> VllmRun:
        requests = self._requests(popularity)
        folders = [str(self._adapters[number].folder) for number in requests.on]
        return VllmRun(folders, requests.prompts, requests.counts)

    def _requests(self, popularity: str) -> Requests:
        return make_requests(self._plan, popularity, self._ours.model.vocab_size)

    def _batches(
        self, requests: Requests, batches: Iterator[list[int]], *, on_base: bool = False
    ) -> float:
        took_s, said = 0.0, 0
        for batch in batches:
            rows = [None if on_base else self._adapters[requests.on[place]] for place in batch]
            counts = [requests.counts[place] for place in batch]
            prompts = [requests.prompts[place] for place in batch]
            took_s += self._peft.generate_s(rows, prompts, max(counts))
            said += sum(counts)
            if took_s >= self._plan.enough_s:
                break
        return said / took_s


@contextmanager
def open_generation(source: str, rank: int, plan: GenerationPlan) -> Iterator[Generation]:
    """Load a model on both sides, with adapters on all its linear layers.

    Args:
        source: folder of the model.

    Raises:
        InvalidRequest: it takes no adapters, or PEFT is not there.
    """
    with ThreadPoolExecutor(1) as thread, TemporaryDirectory() as name:
        folder = Path(name)
        ours = Ours(source, thread)
        if ours.model.lora is None:
            raise InvalidRequest(f"{source}: it takes no adapters")
        adapters = make_adapters(folder, ours.model.lora, "all", [rank], plan.num_adapters)
        tokens = LONGEST * (plan.prompt + plan.said) + BLOCK_TOKENS
        ours.open(adapters, folder, plan.num_requests * tokens)
        try:
            yield Generation(ours, PeftSide(source, adapters, thread), adapters, plan)
        finally:
            ours.close()


def _length(rng: random.Random, median: int) -> int:
    """Tokens, at least one, at most `LONGEST` times the median."""
    return min(max(round(rng.lognormvariate(0.0, SPREAD) * median), 1), LONGEST * median)
