"""A tokenizer for a model whose tokens are numbers: each is a word."""

from collections.abc import Sequence
from typing import Any

from services.frontend.rendering.tokenizer import ModelTokenizer


class _Words:
    """As much of a tokenizer of transformers as `ModelTokenizer` uses. It has no chat template."""

    chat_template = None
    model_input_names: Sequence[str] = ()
    all_special_tokens: Sequence[str] = ()

    def __init__(self, num: int) -> None:
        self._num = num

    def __len__(self) -> int:
        return self._num

    def get_vocab(self) -> dict[str, int]:
        return {f" {token}": token for token in range(self._num)}

    def get_chat_template(self, tools: Any = None) -> str:
        raise ValueError("this model has no chat template")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(f" {token}" for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return f" {token}"


class SimModelFiles:
    """`services.frontend.models.files.ModelFiles`: one tokenizer for all models."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    async def prepare(self) -> None:
        """Nothing is imported."""

    async def tokenizer(self, source: str) -> ModelTokenizer:
        return ModelTokenizer(_Words(self._vocab_size), source)

    async def image_processor(self, source: str) -> Any:
        raise AssertionError("no model takes images")
