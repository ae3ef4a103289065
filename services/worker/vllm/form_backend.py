"""Takes the place of vLLM's guidance backend in vLLM's engine process, which imports this file as
its ``reasoning_parser_plugin``: the one hook that vLLM calls before it makes its backend.
"""

from typing import Any

import numpy as np
import torch
import vllm.v1.structured_output as manager
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
)

from services.worker.core.vllm.forms import read_form
from services.worker.device.grammar.unique_keys import UniqueKeys
from services.worker.device.grammar.vocabulary import Vocabulary
from services.worker.models.generation import end_token_ids, generation_config
from services.worker.vllm.form_walk import FormWalk


class FormGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # without vLLM it has no type
    """A reply's `FormWalk`, as vLLM drives it."""

    def __init__(self, walk: FormWalk) -> None:
        self._walk = walk
        self._num_taken = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self._num_taken += len(tokens)
        return self._walk.accept(tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens[: self._walk.num_allowed([token for token in tokens if token >= 0])]

    def rollback(self, num_tokens: int) -> None:
        self._num_taken -= num_tokens
        self._walk.take_back(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        self._walk.fill(bitmask[batch_index].numpy())

    def is_terminated(self) -> bool:
        return False  # behind its end the mask allows ends alone; vLLM's would allow everything

    def reset(self) -> None:
        self.rollback(self._num_taken)


class FormBackend(StructuredOutputBackend):  # type: ignore[misc]
    """Makes them of the texts that the worker wrote."""

    def __init__(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> None:
        super().__init__(vllm_config, tokenizer, vocab_size)
        model = vllm_config.model_config
        ends = end_token_ids(generation_config(model.model), model.hf_text_config)
        self._vocabulary = Vocabulary(model.model, vocab_size, ends)
        self._unique: UniqueKeys | None = None

    def compile_grammar(
        self, request_type: object, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> FormGrammar:
        form, tokenizer = read_form(grammar_spec), self._vocabulary.tokenizer()
        if form.json_after and self._unique is None:
            self._unique = UniqueKeys(tokenizer)
        return FormGrammar(FormWalk(form, tokenizer, self._unique if form.json_after else None))

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        words = np.full((max_num_seqs, -(-self.vocab_size // 32)), -1, np.int32)
        return torch.from_numpy(words)

    def destroy(self) -> None:
        """It holds nothing that has to be freed."""


manager.GuidanceBackend = FormBackend
