"""A model's tokens as bytes, for grammars to walk along; made when the first one asks."""

from collections.abc import Collection
from pathlib import Path
from threading import Lock

from llguidance import LLTokenizer


class Vocabulary:
    """Args:
    source: folder or name of the model's tokenizer.
    size: tokens that the model can say, those that its tokenizer does not know with them.
    end_token_ids: any of which may end a reply.
    """

    def __init__(self, source: str, size: int, end_token_ids: Collection[int]) -> None:
        self.size = size
        self.end_token_ids = frozenset(end_token_ids)
        self._source = source
        self._lock = Lock()
        self._made: LLTokenizer | None = None

    def tokenizer(self) -> LLTokenizer:
        """May take a second, the first time.

        Raises:
            ValueError: the tokenizer is none that grammars can use.
        """
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> LLTokenizer:
        ends = sorted(self.end_token_ids) or None
        path = Path(self._source) / "tokenizer.json"
        if path.exists():
            return LLTokenizer(str(path), n_vocab=self.size, eos_token=ends)
        from llguidance.hf import from_tokenizer
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        tokenizer = AutoTokenizer.from_pretrained(self._source)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(f"{type(tokenizer).__name__} does not tell its tokens")
        return from_tokenizer(tokenizer, n_vocab=self.size, eos_token=ends)
