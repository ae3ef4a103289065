"""A tokenizer for a model whose tokens are numbers: each is a word, or the call of a tool."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from services.frontend.rendering.child import OPERATIONS
from services.frontend.rendering.frames import Operation
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.texts import Texts
from services.frontend.rendering.tokenizer import ModelTokenizer

NUM_CALLS = 3  # tokens at the end of the vocabulary that call a tool
TOOL = "ls"
CALL = f'<tool_call>{{"name": "{TOOL}", "arguments": {{}}}}</tool_call>'
TEMPLATE = "{{ tools }}<tool_call>"  # shows how the model calls tools
RENDER_S = 0.001


class _Words:
    """As much of a tokenizer of transformers as `ModelTokenizer` uses. Its chat template writes
    what the messages hold.
    """

    chat_template = TEMPLATE
    model_input_names: Sequence[str] = ()
    all_special_tokens: Sequence[str] = ()

    def __init__(self, num: int) -> None:
        self._num = num

    def __len__(self) -> int:
        return self._num

    def get_vocab(self) -> dict[str, int]:
        return {f" {token}": token for token in range(self._num)}

    def get_chat_template(self, tools: Any = None) -> str:
        return TEMPLATE

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], tokenize: bool, **_: Any
    ) -> str:
        return "".join(message["content"] for message in messages)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        calls_from = self._num - NUM_CALLS
        return "".join(f" {token}" if token < calls_from else CALL for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return f" {token}"


class SimModelFiles:
    """`services.frontend.models.files.ModelFiles`: one tokenizer for all models."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    async def prepare(self) -> None:
        """Nothing is imported."""

    async def tokenizer(self, source: str) -> ModelTokenizer:
        made = ModelTokenizer(_Words(self._vocab_size), source)
        made.template_names = frozenset({"tools"})  # without compiling the template
        return made

    async def image_processor(self, source: str) -> Any:
        raise AssertionError("no model takes images")


class SimTexts(Texts):
    """Texts without processes: what those would do takes a moment."""

    def __init__(self) -> None:
        unused = cast(Any, None)
        super().__init__(unused, unused)

    async def _run(
        self, pool: Pool, tokenizer: ModelTokenizer, operation: Operation, *arguments: Any
    ) -> tuple[bytes, bytes]:
        await asyncio.sleep(RENDER_S)
        return OPERATIONS[operation](tokenizer, *arguments)
