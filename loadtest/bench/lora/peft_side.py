"""transformers + PEFT on the same adapters: in batches of one, and in its own mixed batches."""

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from loadtest.bench.lora.made import MadeAdapter
from loadtest.in_process_engine import some_prompt
from loadtest.model_cache import cache_name
from shared.errors import InvalidRequest

BASE = "__base__"  # PEFT's name of no adapter
CHUNK = 128  # a whole batched prefill at once would need gigabytes for its scores


@dataclass(slots=True)
class _Batch:
    """Turns that stand where the next step finds them.

    Attributes:
        names: of each row's adapter; None: the model's active one.
    """

    cache: DynamicCache
    token: torch.Tensor
    names: list[str] | None


class PeftSide:
    """Computes in `thread`, as our side does: OpenMP keeps a team of threads for each thread.

    Raises:
        InvalidRequest: PEFT is not installed.
    """

    def __init__(
        self, source: str, adapters: Sequence[MadeAdapter], thread: ThreadPoolExecutor
    ) -> None:
        self._thread = thread
        self._model = thread.submit(_load, source, adapters).result()
        self._vocab_size = self._model.config.get_text_config().vocab_size
        self._mixed: _Batch | None = None

    def one_adapter_ms(self, adapter: MadeAdapter, context: int, steps: int) -> float:
        """A step of one turn on the active adapter; making it the active one costs nothing here."""
        return self._thread.submit(self._one_adapter_ms, adapter, context, steps).result()

    def begin_mixed(self, rows: Sequence[MadeAdapter], context: int) -> None:
        """Prompts of a batch in which each row has its own adapter; in place of another one."""
        self._mixed = None
        names = [each.ref.name for each in rows]
        self._mixed = self._thread.submit(self._begin, names, len(names), context).result()

    def mixed_ms(self, steps: int) -> float:
        """A step of that batch."""
        assert self._mixed is not None, "no batch was begun"
        return self._thread.submit(self._steps_ms, self._mixed, steps).result()

    def end_mixed(self) -> None:
        """Let go of the batch's memory."""
        self._mixed = None

    def logits(self, adapter: MadeAdapter | None, tokens: list[int]) -> torch.Tensor:
        """float32 [len(tokens), vocabulary] on an adapter or on the base model."""
        return self._thread.submit(self._logits, adapter, tokens).result()

    def generate_s(
        self, rows: Sequence[MadeAdapter | None], prompts: list[list[int]], count: int
    ) -> float:
        """Seconds in which transformers' own generation says `count` tokens behind each prompt.

        Args:
            rows: adapter of each prompt; one and the same for all is made the active one, others
                are a mixed batch.
        """
        return self._thread.submit(self._generate_s, rows, prompts, count).result()

    @torch.inference_mode()
    def _generate_s(
        self, rows: Sequence[MadeAdapter | None], prompts: list[list[int]], count: int
    ) -> float:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        mask = (torch.arange(longest) >= longest - lengths[:, None]).long()
        on: AbstractContextManager[Any] = nullcontext()
        mixed: dict[str, list[str]] = {}
        first, is_one = (
            rows[0],
            len({None if each is None else each.ref.name for each in rows}) == 1,
        )
        if not is_one:
            mixed["adapter_names"] = [BASE if each is None else each.ref.name for each in rows]
        elif first is None:
            on = self._model.disable_adapter()
        else:
            self._model.set_adapter(first.ref.name)
        with on:
            started = time.perf_counter()
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                min_new_tokens=count,
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                **mixed,
            )
            return time.perf_counter() - started

    @torch.inference_mode()
    def _one_adapter_ms(self, adapter: MadeAdapter, context: int, steps: int) -> float:
        self._model.set_adapter(adapter.ref.name)
        return self._steps_ms(self._begin(None, 1, context), steps)

    @torch.inference_mode()
    def _begin(self, names: list[str] | None, num_rows: int, context: int) -> _Batch:
        ids = torch.tensor([some_prompt(n, context, self._vocab_size) for n in range(num_rows)])
        batch = _Batch(DynamicCache(), ids[:, -1:], names)
        for start in range(0, context, CHUNK):
            self._forward(ids[:, start : start + CHUNK], batch)
        return batch

    @torch.inference_mode()
    def _steps_ms(self, batch: _Batch, steps: int) -> float:
        token = self._forward(batch.token, batch)
        started = time.perf_counter()
        for _ in range(steps):
            token = self._forward(token, batch)
            token.tolist()
        took_s = time.perf_counter() - started
        batch.cache.crop(-(steps + 1))
        return took_s / steps * 1e3

    @torch.inference_mode()
    def _logits(self, adapter: MadeAdapter | None, tokens: list[int]) -> torch.Tensor:
        on: AbstractContextManager[Any] = nullcontext()
        if adapter is None:
            on = self._model.disable_adapter()
        else:
            self._model.set_adapter(adapter.ref.name)
        with on:
            logits = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        found: torch.Tensor = logits[0].float()
        return found

    def _forward(self, ids: torch.Tensor, batch: _Batch) -> torch.Tensor:
        named: dict[str, Any] = {cache_name(self._model.get_base_model()): batch.cache}
        if batch.names is not None:
            named["adapter_names"] = batch.names
        logits = self._model(input_ids=ids, use_cache=True, logits_to_keep=1, **named).logits
        token: torch.Tensor = logits[:, -1].argmax(-1, keepdim=True)
        return token


def _load(source: str, adapters: Sequence[MadeAdapter]) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        raise InvalidRequest("bench lora compares with PEFT: pip install peft") from None
    base = AutoModelForCausalLM.from_pretrained(source, dtype="auto", attn_implementation="sdpa")
    first, *others = adapters
    with warnings.catch_warnings():
        # What PEFT asks transformers is not ours to change.
        warnings.simplefilter("ignore", FutureWarning)
        model = PeftModel.from_pretrained(base, str(first.folder), adapter_name=first.ref.name)
        for each in others:
            model.load_adapter(str(each.folder), adapter_name=each.ref.name)
    return model.eval()
