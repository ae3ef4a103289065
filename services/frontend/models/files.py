"""What is read from a model's folder: its tokenizer, or its image processor."""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from services.frontend.models.images import ImageProcessor, load_image_processor
from services.frontend.rendering.tokenizer import ModelTokenizer, import_library, load_tokenizer

Made = TypeVar("Made")


class ModelFiles(Protocol):
    """Where tokenizers and image processors come from. Loading raises one of
    `tokenizer.LOAD_ERRORS`.
    """

    async def prepare(self) -> None:
        """Do early what the first load needs."""
        ...

    async def tokenizer(self, source: str) -> ModelTokenizer:
        """Load the tokenizer of the model at `source`."""
        ...

    async def image_processor(self, source: str) -> ImageProcessor:
        """Load the image processor of the model at `source`."""
        ...


class LocalModelFiles:
    """Reads them from this machine's disk.

    Args:
        thread: a single one: transformers' imports fail when two threads make them at once.
    """

    def __init__(self, thread: Executor) -> None:
        self._thread = thread

    async def prepare(self) -> None:
        """Import the library, while workers still load their weights."""
        await self._in_thread(import_library)

    async def tokenizer(self, source: str) -> ModelTokenizer:
        made = await self._in_thread(load_tokenizer, source)
        gc.freeze()  # it stays: the collector need not look through it again and again
        return made

    async def image_processor(self, source: str) -> ImageProcessor:
        return await self._in_thread(load_image_processor, source)

    async def _in_thread(self, work: Callable[..., Made], *arguments: str) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
