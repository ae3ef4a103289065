"""Checks what a reply is to be held to before vLLM is asked: an error there costs more turns."""

import asyncio
from pathlib import Path

from services.worker.core.engine.landing import GRAMMAR_FAILED
from services.worker.core.vllm.forms import Form
from services.worker.device.base.executor import ModelInfo
from services.worker.device.grammar.vocabulary import Vocabulary
from services.worker.vllm.form_walk import FormWalk
from shared.errors import InvalidRequest
from shared.runtime.deep_threads import DeepThreads

BACKEND_FILE = Path(__file__).with_name("form_backend.py")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json")
NUM_THREADS = 2  # a grammar may take a second; the event loop does not wait


def has_tokenizer(source: str) -> bool:
    """Whether a model comes with one; a hub id may."""
    folder = Path(source)
    return not folder.is_dir() or any((folder / name).exists() for name in TOKENIZER_FILES)


class FormCheck:
    """Args:
    info: of the model that is to say it.
    is_possible: vLLM was started with what forms need.
    """

    def __init__(self, info: ModelInfo, *, is_possible: bool) -> None:
        self._is_possible = is_possible
        self._vocabulary = Vocabulary(info.source, info.vocab_size, info.end_token_ids)
        self._threads = DeepThreads(NUM_THREADS, "form-check")

    async def check(self, form: Form) -> None:
        """See that the form can be kept.

        Raises:
            InvalidRequest: it cannot.
        """
        why = "vLLM runs without a tokenizer, or with other structured outputs than the worker's"
        if self._is_possible:
            why = await asyncio.wrap_future(self._threads.submit(self._flaw, form))
        if why:
            raise InvalidRequest(f"grammar: {why}", code=GRAMMAR_FAILED)

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _flaw(self, form: Form) -> str:
        try:
            tokenizer = self._vocabulary.tokenizer()
        except Exception as error:  # any library's
            return f"this model's tokenizer cannot be held to a grammar: {error}"
        try:
            FormWalk(form, tokenizer, None)
        except ValueError as error:
            return str(error)
        return ""
