"""A model's tokenizer and chat template, from its own files.

The heavy library is imported on first use. Encoding and decoding go straight to the fast backend
where there is one: it keeps no state between calls, so that threads may share it.
"""

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import jinja2.meta

from services.frontend.core.detokenizer import text_and_starts
from services.frontend.core.replies.thoughts import thinking_of
from services.frontend.core.tools import FAMILIES, Family, family_of
from services.frontend.rendering.history import as_template_takes, as_text, in_parts
from shared.errors import InvalidRequest

Cuttable = TypeVar("Cuttable", str, list[int], str | list[int])
LOAD_ERRORS = (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError)
INLINE_CHARS_MAX = 16_384  # about 3 ms of tokenizing; longer texts are not tokenized on the loop
PROBE = "what a template writes"
WHY_CHARS_MAX = 1000  # of what a template says of its failure
CHARS_PER_TOKEN_MIN = 100  # a vocabulary's longest token is taken to have at least so many

_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Tokens of one input, special tokens included.

    Attributes:
        segments: token type ids, as many; empty if all are zero.
    """

    tokens: list[int]
    segments: list[int]


@dataclass(frozen=True, slots=True)
class Query:
    """First half of pairs. Make one with `ModelTokenizer.encode_query`.

    Attributes:
        tokens: without special ones.
        encoding: the fast backend's own; None without one.
    """

    text: str
    tokens: list[int]
    encoding: Any


@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept of texts that are longer.

    Attributes:
        cut_to: tokens of an input, special ones and the query included; None: all.
        text_max: tokens of the text alone; None: all.
        keep_end: keep the end instead of the start.
    """

    cut_to: int | None = None
    text_max: int | None = None
    keep_end: bool = False

    @property
    def longest(self) -> int | None:
        """Tokens of a text that can be kept at most."""
        return min((n for n in (self.cut_to, self.text_max) if n is not None), default=None)

    def of(self, tokens: list[int]) -> list[int]:
        """What is kept of a text that came as tokens."""
        return tokens if self.longest is None else self.side_of(tokens, self.longest)

    def side_of(self, text: Cuttable, length: int) -> Cuttable:
        """So much of a text's start or end."""
        return text[max(len(text) - length, 0) :] if self.keep_end else text[:length]


class ModelTokenizer:
    """Text to tokens and back, for one model. Make one with `load_tokenizer`.

    Attributes:
        name: of this one among all that this process loaded.
        source: where its files are.
        chars_per_token_max: a text with more characters a token than this does not exist.
        template_names: what the chat template reads beside the messages. A text process finds out,
            for that compiles the template; a frontend sets it before it asks for anything below.
        knows_tools: its chat template has a place for them.
        tool_family: how the model writes calls of tools, by its template.
        names_outside: it writes a tool's name outside of the call's JSON, with a mark behind.
        thinking: how the model marks thoughts, by its template; None: it has none.
    """

    def __init__(self, tokenizer: Any, source: str = "") -> None:
        self.name = str(next(_NUMBERS))
        self.source = source
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:  # some files say how their model was trained
            self._backend.no_truncation()
            self._backend.no_padding()
        self._has_segments = "token_type_ids" in getattr(tokenizer, "model_input_names", ())
        self.vocab_size = len(tokenizer)
        # A token's name is never shorter than what it stands for.
        longest = max(map(len, tokenizer.get_vocab()), default=0)
        self.chars_per_token_max = max(longest, CHARS_PER_TOKEN_MIN)
        self._templates = self._template(None), self._template([{}])
        self.thinking = thinking_of(self._templates[0])
        self._special_names = self._names_of_special()
        # Not a cycle: `models` freezes what it loads, and a frozen cycle would stay for ever.
        me: ModelTokenizer = weakref.proxy(self)

        @lru_cache(maxsize=65_536)
        def token_bytes(token: int) -> bytes:
            return me._token_bytes(token)

        @lru_cache(maxsize=65_536)
        def token_text(token: int) -> str:
            return me._token_text(token)

        self.token_bytes = token_bytes
        self.token_text = token_text

    @property
    def has_template(self) -> bool:
        """Whether it can write chats."""
        return any(self._templates)

    @cached_property
    def template_names(self) -> frozenset[str]:
        """See above. Compiles the template: for text processes."""
        return frozenset().union(*map(_names_in, set(self._templates)))

    @cached_property
    def knows_tools(self) -> bool:
        """See above."""
        return "tools" in self.template_names

    @cached_property
    def tool_family(self) -> Family:
        """See above."""
        return family_of(self._templates[1]) if self.knows_tools else FAMILIES["hermes"]

    @cached_property
    def names_outside(self) -> bool:
        """See above."""
        marker = self.tool_family.argument_marker
        return bool(marker) and marker in self._templates[1]

    def render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """A chat as the model's own template writes it. For text processes.

        Raises:
            InvalidRequest: there is no template, or it refuses these messages.
        """
        if not self._tokenizer.chat_template:
            raise InvalidRequest("this model has no chat template: use /v1/completions", "messages")
        messages = as_template_takes(messages, self.tool_family)
        if not self.knows_tools:
            messages = as_text(messages, options.get("tools") or ())
            options = {name: value for name, value in options.items() if name != "tools"}
        if self._takes_parts_only:
            messages = list(map(in_parts, messages))
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except MemoryError:
            raise InvalidRequest(
                "the model's chat template: it takes too much memory", "messages"
            ) from None
        except Exception as error:  # a template is a program, and raises what it likes
            why = str(error)[:WHY_CHARS_MAX] or type(error).__name__
            raise InvalidRequest(f"the model's chat template: {why}", "messages") from None
        return text

    @cached_property
    def _takes_parts_only(self) -> bool:
        """Whether its template writes contents that are lists of parts, and none that is text, as
        some of vision models do.
        """
        message = {"role": "user", "content": PROBE}
        return not self._writes(message) and self._writes(in_parts(message))

    def _writes(self, message: dict[str, Any]) -> bool:
        try:
            return PROBE in self._tokenizer.apply_chat_template([message], tokenize=False)
        except Exception:  # as of `render`
            return False

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of `text`. Blocks: long ones are encoded by `rendering.texts`.

        Args:
            special: add what the model expects at a text's start.
        """
        tokens: list[int]
        if self._backend is not None:
            tokens = self._encoding(text, special).ids
        else:
            tokens = self._tokenizer.encode(text, add_special_tokens=special)
        return tokens

    def encode_query(self, text: str) -> Query:
        """What `encode_inputs` pairs texts with. Blocks for a long one: call it in a thread."""
        if self._backend is None:
            return Query(text, self.encode(text, special=False), None)
        encoding = self._encoding(text, special=False)
        return Query(text, encoding.ids, encoding)

    def encode_inputs(
        self, texts: Sequence[str], query: Query | None, *, special: bool, cut: Cut
    ) -> list[ModelInput]:
        """Texts as an encoder reads them: each alone, or as the second half of a pair.

        Args:
            query: first half of every pair.
            special: add what the model expects around and between.
            cut: what is kept of longer texts. A query is never cut.

        Raises:
            InvalidRequest: the cut would leave nothing of any text.
        """
        keep = self._num_kept(cut, query, special) if texts else None
        backend = self._backend
        if backend is None:
            if keep is not None and cut.keep_end:
                raise InvalidRequest(
                    "truncation_side: this model's tokenizer keeps the start only",
                    "truncation_side", "unsupported_value",
                )  # fmt: skip
            return [self._encode_slowly(text, query, special, keep) for text in texts]
        inputs = []
        for text in texts:
            part = self._encoding(text, special=False)
            if keep is not None:
                part.truncate(keep, direction="left" if cut.keep_end else "right")
            halves = (part, None) if query is None else (query.encoding, part)
            whole = backend.post_process(*halves, special)
            inputs.append(self._input(whole.ids, whole.type_ids))
        return inputs

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens` without special tokens."""
        return self._decode(tokens, skip=True)

    def decode_all(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special tokens included."""
        return self._decode(tokens, skip=False)

    def is_special(self, text: str) -> bool:
        """Whether it is a token that `decode` leaves out."""
        return text in self._special_names

    def special_id(self, text: str) -> int | None:
        """The token that it is, if `decode` leaves that out; None: it is text like any other."""
        if not self.is_special(text):
            return None
        token = self._tokenizer.convert_tokens_to_ids(text)
        return token if isinstance(token, int) else None

    def echo(self, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """Text of a prompt, and where in it each token's text starts. Blocks."""
        return text_and_starts(self.decode_all, tokens)

    def _token_text(self, token: int) -> str:
        """One token as text; a part of a character as ``bytes:\\xe4``."""
        text = self.decode_all([token])
        if "\N{REPLACEMENT CHARACTER}" not in text:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.token_bytes(token))

    def token_name(self, token: int) -> str:
        """The vocabulary's own name for a token."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def _encoding(self, text: str, special: bool) -> Any:
        """The fast backend's, without the places of tokens in the text: they are not needed, and
        take a quarter of the time, and of a long text most of the memory.
        """
        backend: Any = self._backend
        return backend.encode_batch_fast([text], add_special_tokens=special)[0]

    def _template(self, tools: list[dict[str, Any]] | None) -> str:
        """The chat template, some have one of their own for tools; empty: there is none, or none
        that applies.
        """
        try:
            return str(self._tokenizer.get_chat_template(tools=tools))
        except ValueError:
            return ""

    def _names_of_special(self) -> frozenset[str]:
        """Tokens that `decode` leaves out."""
        if self._backend is None:
            return frozenset(self._tokenizer.all_special_tokens)
        added = self._backend.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added if token.special)

    def _num_kept(self, cut: Cut, query: Query | None, special: bool) -> int | None:
        """Tokens of a text that is cut, without those that are there anyway; None: all."""
        cut_to, text_max = cut.cut_to, cut.text_max
        if cut_to is None:
            return text_max
        num_fixed = 0 if query is None else len(query.tokens)
        if special:
            num_fixed += self._tokenizer.num_special_tokens_to_add(query is not None)
        if cut_to > num_fixed:
            return min(cut_to - num_fixed, text_max or cut_to)
        whose = "special tokens" if query is None else "special tokens and the query"
        raise InvalidRequest(
            f"truncate_prompt_tokens: {cut_to} leaves nothing of the text: "
            f"{whose} take {num_fixed} tokens",
            "truncate_prompt_tokens",
        )

    def _encode_slowly(
        self, text: str, query: Query | None, special: bool, keep: int | None
    ) -> ModelInput:
        """`encode_inputs` for one text, without the fast backend."""
        pair = (text, None) if query is None else (query.text, text)
        options: dict[str, Any] = {"add_special_tokens": special}
        whole = self._tokenizer(*pair, **options)
        if keep is not None:
            alone = len(self._tokenizer(text, add_special_tokens=False)["input_ids"])
            if alone > keep:
                side = "only_first" if query is None else "only_second"
                num_max = len(whole["input_ids"]) - alone + keep
                whole = self._tokenizer(*pair, **options, truncation=side, max_length=num_max)
        return self._input(whole["input_ids"], whole.get("token_type_ids", ()))

    def _input(self, tokens: list[int], segments: Sequence[int]) -> ModelInput:
        return ModelInput(tokens, list(segments) if self._has_segments and any(segments) else [])

    def _decode(self, tokens: Sequence[int], *, skip: bool) -> str:
        text: str
        if self._backend is not None:
            text = self._backend.decode(tokens, skip_special_tokens=skip)
        else:
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=skip)
        return text

    def _token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for, whole characters or not."""
        text = self.decode_all([token])
        if "\N{REPLACEMENT CHARACTER}" not in text:
            return text.encode("utf-8", "surrogatepass")
        name = self.token_name(token)
        if name.startswith("<0x") and name.endswith(">"):  # sentencepiece byte fallback
            return bytes.fromhex(name[3:-1])
        return bytes(self._bytes_of_symbols.get(symbol, 0x3F) for symbol in name)

    @cached_property
    def _bytes_of_symbols(self) -> dict[str, int]:
        """Byte-level BPE's alphabet: printable bytes stand for themselves, others follow 255."""
        printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
        others = (256 + n for n in range(256))
        return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}


def _names_in(template: str) -> frozenset[str]:
    """What a chat template reads beside the messages; nothing if it cannot be used."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        environment = _compile_jinja_template(template).environment
        names = jinja2.meta.find_undeclared_variables(environment.parse(template))
    except Exception:  # constants are computed when it is compiled, and may raise what they like
        return frozenset()
    return frozenset(names - environment.globals.keys() - {"messages"})


def import_library() -> None:
    """Make the imports of `load_tokenizer`, which take a second."""
    from transformers import AutoTokenizer  # noqa: F401


def load_tokenizer(source: str) -> ModelTokenizer:
    """Read a tokenizer from a folder or hub id. Blocks; takes seconds.

    Raises:
        OSError: not there.
        ValueError: not a tokenizer.
    """
    from transformers import AutoTokenizer

    return ModelTokenizer(AutoTokenizer.from_pretrained(source), source)
